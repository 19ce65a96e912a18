"""A person judges episodes: a judgement counts for the step in which it was seen, and resets wait
for the person.
"""

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from house import alone, buffers_of, collect, steps_in
from kit.clocks import LoopTime
from kit.environments import acting, returning
from kit.fakes import CountingEnv
from kit.keyboards import Keys

from tmrl_like import load_experiment
from tmrl_like.base.functional import partial
from tmrl_like.cli.check import taken
from tmrl_like.config.run_lock import use_run
from tmrl_like.errors import ConfigError
from tmrl_like.replay.memory import ReplayMemory
from tmrl_like.worker import control_loop, judged_loop, person
from tmrl_like.worker.action_chain import ActionChain, ActionPart
from tmrl_like.worker.options import PersonOptions

STEP_S = 0.1


@pytest.fixture
def clock(monkeypatch):
    clock = LoopTime()
    for module in (control_loop, judged_loop, person):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Watched(CountingEnv):
    """An environment with steps of 0.1 s. `says` maps steps to what a person says, and how many
    seconds after the step began.
    """

    def __init__(self, clock, says, **options):
        super().__init__(**options)
        self.clock, self.says, self.obs = clock, says, np.zeros(2, np.float32)
        self.say = None

    def _obs(self):
        self.obs[:] = super()._obs()  # reuses one array
        return self.obs

    def step(self, action):
        began, number = self.clock.now, self.total_steps + 1
        for after_s, said in self.says.get(number, ()):
            self.clock.now = began + after_s
            self.say(said)
        self.clock.now = began + STEP_S
        return super().step(action)


@pytest.fixture
def make(clock):
    """Return a function that makes a worker with episodes of ten steps of 0.1 s; step n is rewarded
    with n.
    """
    with contextlib.ExitStack() as opened:

        def worker(says, reaction_s=0.0, env_cls=Watched, failure_reward=0.0, **options):
            judge = PersonOptions(
                watches=True, reaction_s=reaction_s, failure_reward=failure_reward
            )
            made = opened.enter_context(
                alone(partial(env_cls, clock, says), person=judge, **options)
            )
            made.env.say = made.person.say
            return made

        yield worker


AT_SEVEN = {7: [(0.05, "success")]}
SEVERAL = {2: [(0.01, 0.5), (0.02, 0.25)], 5: [(0.05, "failure"), (0.06, "success")]}
TOO_LATE = {13: [(0.05, "success")]}  # what was seen 0.3 s before, when no episode had begun
TEN = [*range(1, 11)]


@pytest.mark.parametrize(
    ("says", "reaction_s", "rewards"),
    [
        (AT_SEVEN, 0.04, [1, 2, 3, 4, 5, 6, 8]),
        (AT_SEVEN, 0.06, [1, 2, 3, 4, 5, 7]),
        ({7: [(0.05, "failure")]}, 0.16, [1, 2, 3, 4, 0]),
        ({7: [(0.05, 0.25)]}, 0.16, [1, 2, 3, 4, 5.25, 6, 7, 8, 9, 10]),
        (SEVERAL, 0.0, [1, 2.75, 3, 4, 0]),
        (TOO_LATE, 0.3, TEN),
    ],
)
def test_what_a_person_says_is_in_the_sample_of_the_step_in_which_it_was_seen(
    make, says, reaction_s, rewards
):
    """It concerns one episode; the next one has all its steps and rewards."""
    rollouts, steps = [], len(rewards)
    worker = make(says, reaction_s, failure_reward=-5.0, on_rollout=rollouts.append)
    stats, samples = collect(worker, episodes=2)
    assert [float(sample.rew) for sample in samples] == rewards + TEN
    assert [int(sample.obs[1]) for sample in samples] == TEN[:steps] + TEN
    assert [n for n, sample in enumerate(samples, 1) if sample.terminated] == [steps, steps + 10]
    assert [(s.steps, s.return_) for s in stats] == [(steps, sum(rewards)), (10, 55.0)]
    assert worker.loop.collected_steps == len(samples)
    worker.rollouts.close()
    assert [rollout.rewards.tolist() for rollout in rollouts] == [rewards, TEN]


@pytest.mark.parametrize(
    ("after_s", "rewards"),
    [(0.15, [1, 2, 3, 4, 5, 6, 7, 8, 10]), (0.33, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11])],
)
def test_a_success_right_after_the_end_of_an_episode_counts_for_its_last_moments(
    make, clock, after_s, rewards
):
    worker = make({}, reaction_s=0.3)
    pauses = []

    def sleep(seconds):
        clock.now += after_s
        worker.person.say("success")
        clock.now += seconds - after_s
        pauses.append(seconds)

    clock.sleep = sleep
    (stats,), samples = collect(worker)
    assert pauses == [pytest.approx(0.35)]
    assert [float(s.rew) for s in samples] == rewards
    assert samples[-1].terminated
    assert stats.steps == len(rewards)


@pytest.mark.parametrize(
    ("says", "stops_at"), [({}, 3 * STEP_S), ({2: [(0.05, "failure")]}, 2 * STEP_S)]
)
def test_what_moves_is_stopped_where_an_episode_ends_before_anybody_waits(make, says, stops_at):
    stopped_at, began_at = [], LoopTime().now

    class Arm(Watched):
        def stop(self):
            stopped_at.append(self.clock.now)

    worker = make(says, reaction_s=1.0 if not says else 0.0, env_cls=Arm)
    worker.collect_train_episode(max_samples=3)
    assert stopped_at == [pytest.approx(began_at + stops_at)]


def test_an_episode_that_a_person_ends_is_not_cut_as_well(make):
    stats = make({4: [(0.05, "success")]}, reaction_s=0.1).run_episode(4)
    assert (stats.terminated, stats.truncated, stats.steps) == (True, False, 3)
    assert stats.return_ == 1 + 2 + 3 + 1


@pytest.mark.parametrize("kind", [np.float32, int])
def test_a_reward_stays_of_its_kind(make, kind):
    typed = returning(lambda obs, rew, *rest: (obs, kind(rew), *rest), Watched)
    _, samples = collect(make({3: [(0.05, 0.5)]}, env_cls=typed))
    assert float(samples[2].rew) == 3.5
    if kind is not int:
        assert type(samples[2].rew) is type(samples[1].rew)


class Lifted(ActionPart):
    def __call__(self, action):
        action[:] = [x + 0.25 for x in action]


def test_crc_debugging_rebuilds_what_a_person_and_a_chain_have_changed(make):
    says = {7: [(0.05, "success")], 12: [(0.05, 0.5)]}
    chain = partial(ActionChain, [Lifted()], time_step_s=STEP_S)
    worker = make(says, reaction_s=0.24, crc_debug=True, action_chain=chain)
    memory = ReplayMemory(nb_steps=1, device="cpu", memory_size=100, batch_size=1, crc_debug=True)
    with taken(worker) as take:
        for _ in range(2):
            worker.collect_train_episode()
        for buffer in buffers_of(take()):
            memory.append_buffer(buffer)
    rebuilt = [memory.get_transition(item) for item in range(len(memory))]
    assert [float(t.rew) for t in rebuilt] == [1, 2, 3, 4, 6, 1, 2, 3.5, 4, 5, 6, 7, 8, 9, 10]
    assert [n for n, t in enumerate(rebuilt) if t.terminated] == [4, 14]
    assert {float(t.act[0]) for t in rebuilt} == {0.25}


def test_a_stop_loses_no_step_that_was_held_back(make):
    worker = make({}, reaction_s=10.0)
    with taken(worker) as take:
        worker.env.says, worker.env.say = {4: [(0.05, "stop")]}, lambda said: worker.stop()
        worker.run(nb_episodes=1)
        assert len(steps_in(take())) == 4


@pytest.mark.fault(
    "people", "a reset needs a person, who is away", "the worker holds still, says so, and goes on"
)
def test_a_reset_waits_for_a_person_while_nothing_moves_and_can_be_stopped(caplog, capfd, until):
    braked = threading.Event()

    class Arm(CountingEnv):
        def stop(self):
            braked.set()

    options = PersonOptions(watches=True, reset_prompt="put the cube back")
    prompt = "waits for a person: put the cube"
    with alone(Arm, person=options) as worker:
        thread = threading.Thread(target=worker.run_episodes)
        thread.start()
        until(lambda: worker.condition().alarm.startswith(prompt))
        worker.person.say("success")  # no answer to this prompt
        assert (worker.env.total_steps, braked.is_set()) == (0, False)
        worker.person.say("reset-done")
        until(lambda: worker.env.total_steps == 10 and worker.condition().alarm)
        assert braked.is_set()
        assert worker.condition().overruns == 0
        worker.stop()
        thread.join()
        assert worker.condition().alarm == ""
    assert prompt in caplog.text
    assert "\a" in capfd.readouterr().err


def test_an_incident_that_lasts_over_a_reset_by_a_person_is_logged_once(caplog):
    lost = acting(lambda obs: np.full(1, np.nan, np.float32))
    options = PersonOptions(watches=True, reset_prompt="put the cube back")
    with alone(partial(CountingEnv, 2), lost, person=options) as worker:
        worker.person.has_reset = SimpleNamespace(clear=bool, wait=lambda within_s: True)
        worker.run_episodes(nb_episodes=2)
        assert worker.condition().alarm.startswith("the safe action drives")
    assert sum(line.startswith("the safe action drives") for line in caplog.messages) == 1


@pytest.fixture
def keys(monkeypatch):
    """What a person presses, on the keyboard and on a gamepad."""
    keys = Keys()
    monkeypatch.setattr(person, "open_keyboard", lambda: keys)
    monkeypatch.setattr(person, "Gamepad", lambda: keys)
    return keys


def listening(tmp_path, says, **options):
    options = PersonOptions(keys=says, reaction_s=0.0, **options)
    return contextlib.closing(person.Person(options, tmp_path / "run" / "signals"))


def test_keys_buttons_and_a_file_say_what_the_options_say(keys, tmp_path, until):
    says = {"enter": "success", "f5": -0.5, "button 3": "failure", "space": "reset-done"}
    with listening(tmp_path, says, success_reward=2.0, failure_reward=-3.0) as somebody:
        for key, *meant in (("enter", 2.0, True), ("f5", -0.5, False), (3, -3.0, True)):
            keys.held = {key}
            until(lambda: somebody.said)
            time.sleep(0.03)
            (said,) = somebody.said  # only once, however long the key is held
            assert [*said[:2]] == meant
            somebody.said.clear()
        keys.held = {"space"}
        until(somebody.has_reset.is_set)
        with (tmp_path / "run" / "signals").open("a") as lines:
            lines.write("0.75\nsuccess\n")
        until(lambda: len(somebody.said) == 2)
        assert [said[:2] for said in somebody.said] == [(0.75, False), (2.0, True)]
    assert keys.held is None


def test_keys_are_heard_while_there_is_no_gamepad_which_is_one_line(
    keys, tmp_path, until, caplog, monkeypatch
):
    monkeypatch.setattr(person, "Gamepad", lambda: SimpleNamespace(is_down=lambda button: 1 / 0))
    with listening(tmp_path, {"button 0": "success", "space": "reset-done"}) as somebody:
        until(lambda: caplog.messages)
        keys.held = {"space"}
        until(somebody.has_reset.is_set)
    assert caplog.messages == ["a person cannot be heard: ZeroDivisionError: division by zero"]


MEANT = "expected success, failure, reset-done, or a number"


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        *(({"keys": {"enter": said}}, MEANT) for said in ("succes", "nan", -1000001, None)),
        *(
            ({"keys": {"enter": "failure", key: "success"}}, f"a key is {key!r}; .* button 0")
            for key in (1, "button a")
        ),
        ({"failure_reward": 1e39}, "failure_reward is 1e.39; expected -1000000.0 to 1000000.0"),
    ],
)
def test_what_nobody_can_mean_and_what_is_no_key_are_refused(options, refusal):
    with pytest.raises(ConfigError, match=refusal):
        PersonOptions(**options)


JUDGED = """
run_name: judged
env: kit.fakes.CountingEnv
actor: kit.fakes.LinearActor
agent: kit.fakes.CountingAgent
memory: kit.fakes.ListMemory
worker: {person: {watches: true}}
"""


def test_a_command_says_it_to_a_worker_of_a_run(command_line, tmp_path, until, capsys):
    file = tmp_path / "moves.yaml"
    file.write_text(JUDGED, encoding="utf-8")

    def refused():
        exit_code = command_line("signal", str(file), "success")
        return exit_code == 1 and "no worker of the run judged " in capsys.readouterr().err

    experiment = load_experiment(file)
    assert refused()
    with experiment.make_standalone() as worker:
        assert command_line("signal", str(file), "sucess") == 2
        assert command_line("signal", "judged", "success") == 0
        until(lambda: worker.person.said)
        assert worker.person.said[0][:2] == (1.0, True)
        renaming = use_run(experiment.paths, "run", alone=True)
        with pytest.raises(ConfigError, match=r"\(worker that listens, since"), renaming:
            pass
    with use_run(experiment.paths, "worker"):  # of an experiment that has no person
        assert refused()
    assert experiment.paths.signals.read_text() == "success\n"
