"""Server, worker and trainer together, over real connections."""

import threading

import numpy as np
import pytest
from house import alone, collect, linear_actor, offer, publish, take
from kit.environments import calling
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from kit.policies import written
from kit.refusals import one_line
from kit.trainings import is_gapless
from link_proxy import LinkProxy

from tmrl_like.base.files import link_atomically
from tmrl_like.base.functional import partial
from tmrl_like.config import config_constants as cfg
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.run_lock import use_run
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import (
    ConfigError,
    DamagedPolicyError,
    MemoryContractError,
    RefusedError,
    TransportError,
)
from tmrl_like.metrics.reading import read_records
from tmrl_like.metrics.starts import read_starts
from tmrl_like.networking import RolloutWorker, Trainer
from tmrl_like.policies.policy_file import read_card
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.policies.weight_file import write_weights
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import ActionSource
from tmrl_like.worker import policy_gate

SOON = OutboxOptions(max_age_s=0.0)
STEADY = partial(CountingEnv, step_s=0.001)


def retrieve(trainer, n):
    """Return the next samples that arrive at a trainer, at least n."""
    return take(trainer, lambda taken: len(taken.samples) >= n).samples


def bias_of(path):
    return linear_actor().load(path).layer.bias.item()


# -- from one end to the other ---------------------------------------------------------------------


def test_everything_runs_from_construction_to_the_last_epoch(house, until):
    server = house.server()
    trainer, worker = house.trainer(), house.worker(STEADY)
    assert worker.env.total_steps == 0
    house.start(worker.run, test_episode_interval=2)
    trainer.run()
    assert trainer.training.total_updates == 20
    until(lambda: worker.policy_version > 1)
    assert float(worker.actor.state_dict()["layer.bias"]) >= 5.0
    assert server.has_trainer()
    records = list(read_records(cfg.RUN_FOLDER / "metrics.jsonl"))
    assert [r["round"] for r in records if r["kind"] == "round"] == [0, 1]
    assert any(r["kind"] == "episode" and r["test"] for r in records)


def test_samples_are_what_the_environment_produced_and_name_the_policy_that_drove(house, until):
    trainer, worker = house.trainer(), house.worker(outbox=SOON)
    publish(trainer)
    until(worker.loop.driver.refresh)
    house.start(worker.run, nb_episodes=3)
    samples = retrieve(trainer, 33)
    assert [(*s.obs, s.rew, s.terminated, s.truncated, s.info.is_reset) for s in samples] == [
        (episode, step, step, step == 10, False, step == 0)
        for episode in (1, 2, 3)
        for step in range(11)
    ]
    assert {s.info.original for s in samples} == {None}  # sent with CRC debugging only
    assert {s.info.timing.policy_version for s in samples} == {1}


@pytest.mark.fault(
    "network",
    "connections are cut in mid-episode",
    "the control loop goes on, nothing is lost or doubled",
)
def test_nothing_is_lost_or_doubled_when_connections_are_cut_and_the_control_loop_goes_on(
    zmq_house, until
):
    server = zmq_house.server()
    trainer = zmq_house.trainer()
    with LinkProxy(*server.address) as proxy:
        zmq_house.port = proxy.port
        worker = zmq_house.worker(STEADY, outbox=SOON)
        zmq_house.start(worker.run)
        samples = retrieve(trainer, 50)
        for cut in range(3):
            proxy.refuse()
            without_server = worker.condition().env_steps
            until(lambda steps=without_server + 50: worker.condition().env_steps > steps)
            proxy.allow()
            samples += retrieve(trainer, 50 * (cut + 2))
    assert is_gapless(samples)


def with_done(act, obs, rew, done, info):
    """Take a sample of the older form."""


@pytest.mark.parametrize(
    ("compress", "message"),
    [
        (lambda *sample: sample[:5], "compressor returned 5 items; expected .*old `done` is split"),
        (lambda *sample: "sample", "compressor returned a str; expected "),
        (with_done, r"takes \(act, obs, rew, done, info\); expected .*two items replace `done`$"),
        (5, "sample_compressor takes nothing; expected "),
    ],
)
def test_the_error_of_a_wrong_compressor_says_what_is_wrong(compress, message):
    with (
        pytest.raises(MemoryContractError, match=message),
        alone(sample_compressor=compress) as worker,
    ):
        collect(worker)


# -- episodes --------------------------------------------------------------------------------------


class ShowsTests(LinearActor):
    """An actor whose action is 1 in tests and -1 in training."""

    def act(self, obs, test=False):
        return np.array([1.0 if test else -1.0], np.float32)


class RewardIsAction(CountingEnv):
    """An environment whose steps are rewarded with their actions."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(action[0]), *rest


def actions_in(samples):
    return {float(sample.act[0]) for sample in samples if not sample.info.is_reset}


@pytest.mark.parametrize(
    ("options", "returns"),
    [
        ({"test_episode_interval": 3}, [10, -10, -10, -10, 10, -10]),
        ({"test_episode_interval": 3, "expert": True}, [-10] * 4),
        ({"test_episode_interval": 3, "initial_steps": 40}, [10, -10, -10, -10, 10, -10]),
    ],
    ids=["at an interval", "an expert", "in lockstep, until it waits"],
)
def test_tests_come_at_their_interval_act_as_tests_and_leave_no_samples(
    inproc_house, options, returns
):
    trainer, worker = inproc_house.trainer(), inproc_house.worker(RewardIsAction, ShowsTests)
    if "initial_steps" in options:
        inproc_house.start(worker.run_synchronous, **options)
    else:
        worker.run(nb_episodes=4, **options)
    found = take(trainer, lambda found: len(found.episodes) >= len(returns))
    assert [(e.return_, e.test) for e in found.episodes] == [(r, r > 0) for r in returns]
    assert len(found.samples) == 4 * 11
    assert actions_in(found.samples) == {-1.0}


def test_episodes_that_are_not_sent_are_tests_unless_they_train():
    with alone(RewardIsAction, ShowsTests) as worker:
        tests = [*worker.run_episodes(nb_episodes=1), worker.run_episode()]
        trained = [*worker.run_episodes(nb_episodes=1, train=True), worker.run_episode(train=True)]
        assert [(stats.return_, stats.test) for stats in tests] == [(10, True)] * 2
        assert [(stats.return_, stats.test) for stats in trained] == [(-10, False)] * 2


def test_a_limit_of_a_call_goes_before_that_of_the_worker():
    with alone(max_samples_per_episode=1) as worker:
        told = [
            worker.run_episode(),
            worker.run_episode(2),
            *worker.run_episodes(2, nb_episodes=1),
            worker.collect_train_episode(2),
        ]
    assert [stats.steps for stats in told] == [1, 2, 2, 2]
    assert all(stats.truncated and not stats.terminated for stats in told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_samples_per_worker_packet": 0}, "min_samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"realtime_priority": 100}, "realtime_priority is 100"),
    ],
)
def test_arguments_out_of_range_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        alone(**options)


# -- who comes, and who leaves ---------------------------------------------------------------------


@pytest.mark.fault(
    "people", "two workers have one name", "the second waits until the first has left"
)
def test_a_second_worker_of_the_same_name_waits_until_the_first_has_left(
    inproc_house, caplog, until
):
    first = inproc_house.worker(name="arm")
    assert first.wait_connected(60)
    second = inproc_house.worker(name="arm")
    until(lambda: "a worker named arm is connected already" in caplog.text)
    assert not second.wait_connected(0)
    first.close()
    assert second.wait_connected(60)


def test_a_trainer_with_the_model_path_of_a_worker_is_refused(inproc_house, tmp_path):
    assert inproc_house.worker(model_path=tmp_path / "model").wait_connected(60)
    trainer = inproc_house.trainer(model_path=tmp_path / "model")
    with pytest.raises(
        RefusedError, match=r"this trainer and the worker keep .* give each its own model_path"
    ):
        trainer.link.session.wait_connected(60)


def test_a_standalone_worker_opens_no_connection_and_needs_no_key(own_home):
    worker = RolloutWorker(CountingEnv, LinearActor, standalone=True)
    assert [stats.return_ for stats in worker.run_episodes(nb_episodes=2)] == [55.0, 55.0]
    assert not own_home.exists()
    with pytest.raises(TransportError, match=r"^a standalone worker has no connection$"):
        worker.wait_connected(1.0)


def test_a_worker_can_run_again_after_stop():
    worker = alone()
    worker.stop()
    assert worker.run_episodes() == []
    assert len(worker.run_episodes(nb_episodes=1)) == 1


def test_close_waits_for_the_step_under_way(inproc_house):
    step = threading.Barrier(2, timeout=60)
    worker = alone(calling(lambda env: [step.wait(), step.wait()]))
    running = inproc_house.start(worker.run)
    step.wait()
    closing = inproc_house.start(worker.close)
    closing.join(0.1)
    assert closing.is_alive()
    step.wait()
    for thread in (running, closing):
        thread.join(60)
        assert not thread.is_alive()


# -- policies --------------------------------------------------------------------------------------


def test_an_expert_ignores_weights_and_its_samples_say_so_and_continue_no_policys(inproc_house):
    trainer, worker = inproc_house.trainer(), inproc_house.worker(partial(CountingEnv, 5))
    offer(trainer, worker)
    worker.run(nb_episodes=2, expert=True)
    assert worker.policy_version == 0
    worker.run(nb_episodes=1)
    assert worker.policy_version == 1
    found = take(trainer, lambda found: len(found.samples) == 18)
    expert, policy = ({s.info.timing.source for s in samples} for samples in found.streams.values())
    assert (expert, policy) == ({ActionSource.EXPERT}, {ActionSource.POLICY})


@pytest.fixture
def keeper(inproc_house, tmp_path):
    """A trainer, and a worker that saves its weights as `policy`, and every second version as
    `h_…`.
    """
    kept = {"model_path": tmp_path / "policy", "model_path_history": tmp_path / "h"}
    return inproc_house.trainer(), inproc_house.worker(**kept, model_history=2)


def test_the_worker_keeps_its_weights_at_model_path_and_starts_with_them(keeper, tmp_path, until):
    trainer, worker = keeper
    path = tmp_path / "policy"
    for number in range(1, 5):
        publish(trainer, trained=True)
        until(worker.loop.driver.refresh)
        # a worker that is slow to write leaves out all but the newest
        until(lambda number=number: path.exists() and bias_of(path) == number)
    until(lambda: len(list(tmp_path.glob("h_*"))) == 2)
    kept = path.read_bytes()
    assert alone(model_path=path).actor.layer.bias.item() == 4.0
    assert path.read_bytes() == kept


@pytest.mark.fault(
    "disk",
    "a worker's disk is slow to take weights",
    "its link does not wait; the newest is written",
)
def test_a_disk_that_is_slow_to_take_weights_does_not_hold_up_the_link(
    keeper, tmp_path, until, monkeypatch
):
    is_free, written = threading.Event(), []

    def slow(path, weights):
        is_free.wait(60)
        written.append(path.name)
        write_weights(path, weights)

    monkeypatch.setattr(policy_gate, "write_weights", slow)
    trainer, worker = keeper
    for _ in range(24):
        publish(trainer, trained=True)
        until(worker.loop.driver.refresh)
    is_free.set()
    until(lambda: len(list(tmp_path.glob("h_*"))) >= 3 and bias_of(tmp_path / "policy") == 24.0)
    # the first one, the newest of those that waited, and one that came meanwhile
    assert written.count("policy") <= 3


@pytest.mark.fault(
    "disk", "a worker's kept weights are damaged", "it starts without them, and takes the trainer's"
)
def test_a_worker_whose_weights_are_damaged_starts_without_them(
    inproc_house, tmp_path, until, caplog
):
    path = tmp_path / "policy"
    linear_actor().save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    with pytest.raises(DamagedPolicyError, match="do not match their checksum"):
        alone(model_path=path)
    trainer, worker = inproc_house.trainer(), inproc_house.worker(model_path=path)
    assert caplog.text.count("starting without weights") == 1
    assert (tmp_path / "policy.damaged").stat().st_size == len(data)
    assert not worker.loop.driver.received_at
    publish(trainer, trained=True)
    until(path.exists)


def test_a_pinned_worker_drives_its_version_whatever_is_published_and_its_tests_count_for_none(
    inproc_house, tmp_path, until
):
    trainer = inproc_house.trainer()
    pinned = written(tmp_path / "pinned", linear_actor(bias=0.5), version=7)
    worker = inproc_house.worker(policy=pinned, wait_for_policy=True, max_policy_age_s=1e-9)
    inproc_house.start(worker.run, test_episode_interval=1)
    for _ in range(3):
        publish(trainer)
        found = take(trainer, lambda found: len(found.episodes) >= 4)
        assert {sample.info.timing.policy_version for sample in found.samples} == {7}
        (action,) = actions_in(found.samples)
        assert action == pytest.approx(np.tanh(0.5))
        driven = {(stats.test, stats.policy_version) for stats in found.episodes}
        assert driven == {(True, 0), (False, 7)}
    until(lambda: trainer.worker_versions == {worker.name: 7})
    assert trainer.link.fleet()["policy_lag_versions"] == 0
    with alone(policy=pinned) as worker:
        assert worker.run_episode().policy_version == 7


def test_the_first_policy_is_stored_at_the_start_and_later_trainings_of_a_run_continue_the_numbers(
    inproc_house, tmp_path
):
    store = PolicyStore(tmp_path / "drone" / "policies")
    paths = {"policies_path": store.folder, "checkpoint_path": tmp_path / "checkpoint"}
    starts = (("all", 0), ("all", 0), ("none", 2), ("all", 2))
    for number, (resume, earlier) in enumerate(starts, start=1):
        trainer = inproc_house.trainer(**paths, options=TrainerOptions(resume=resume))
        assert trainer.training.kept.earlier == earlier  # versions of a training that was given up
        with trainer:
            trainer.stop()
            trainer.run()
            trainer.save_checkpoint()
        assert store.versions() == [*range(1, number + 1)]
    assert {card.run for _, card in store.cards()} == {"drone"}
    # from a process killed before its next checkpoint
    link_atomically(store.path(1), store.path(30))
    assert inproc_house.trainer(**paths).link.newest_version == 30


def test_the_policy_with_the_best_test_episodes_is_tagged(inproc_house, tmp_path, until):
    store = PolicyStore(tmp_path / "policies")
    rarely = {"rounds": 1_000_000, "update_model_interval": 1_000_000}  # keep the first version
    trainer = inproc_house.trainer(policies_path=store.folder, training=rarely)
    worker = inproc_house.worker(partial(CountingEnv, episode_steps=5))
    inproc_house.start(trainer.run)
    inproc_house.start(worker.run, test_episode_interval=1)
    until(lambda: "best" in store.tags())
    assert read_card(store.find("best")).return_ == 15.0


def test_a_new_training_starts_from_another_runs_policy_and_a_resumed_one_goes_on(
    inproc_house, tmp_path
):
    def bias_in(trainer):
        return trainer.training.agent.actor.layer.bias.item()

    store = PolicyStore(tmp_path / "other" / "policies")
    written(store.path(1), linear_actor(bias=100.0), version=1)
    options = TrainerOptions(init_policy=f"{tmp_path / 'other'}@1")
    parts = {"checkpoint_path": tmp_path / "checkpoint", "options": options}
    with inproc_house.trainer(**parts) as trainer:
        assert bias_in(trainer) == 100.0
        publish(trainer, trained=True)
        trainer.training.total_updates = 1
        trainer.save_checkpoint()
    assert bias_in(inproc_house.trainer(**parts)) == 101.0


def test_a_policy_that_no_training_can_start_from_is_refused_in_one_line(inproc_house, tmp_path):
    linear_actor(bias=float("nan")).save(tmp_path / "broken")
    with one_line("init_policy is .*broken: .*broken: layer.bias holds values that are not finite"):
        inproc_house.trainer(options=TrainerOptions(init_policy=f"{tmp_path}/broken"))


# -- runs ------------------------------------------------------------------------------------------


def kept_in(folder):
    return {
        str(file.relative_to(folder)) for file in folder.rglob("*.*") if "replay" not in str(file)
    }


def test_the_name_of_the_run_alone_says_where_everything_is_kept(monkeypatch, inproc_house, until):
    monkeypatch.setattr(cfg, "RUN_NAME", "second", raising=False)
    monkeypatch.setattr(cfg, "MODEL_HISTORY", 1, raising=False)
    paths = RunPaths("second", cfg.DATA_FOLDER)
    where = {"server_port": inproc_house.server().address[1], "transport": "inproc"}
    with RolloutWorker(CountingEnv, LinearActor, **where) as worker:
        with pytest.raises(ConfigError, match=r"the run second is in use by process \d+ \("):
            use_run(paths, "run", alone=True).__enter__()
        inproc_house.start(worker.run)
        kept = dict.fromkeys(("model_path", "checkpoint_path", "policies_path"), RunPath.OF_RUN)
        with inproc_house.trainer(**kept) as trainer:
            trainer.run()
            until(cfg.MODEL_PATH_WORKER.is_file)
            until(lambda: list(cfg.MODEL_PATH_SAVE_HISTORY.parent.glob("policy_*.safetensors")))
    assert {
        "weights/trainer.safetensors",
        "weights/worker.safetensors",
        "policies/1.safetensors",
        "metrics.jsonl",
    } < kept_in(cfg.DATA_FOLDER / "runs" / "second")
    assert (cfg.CHECKPOINT_PATH / "checkpoint-1").is_file()
    (start,) = read_starts(cfg.RUN_FOLDER)
    assert (start.task, start.ended) == ("CountingEnv", "done")
    with use_run(paths, "run", alone=True):
        pass


def test_none_instead_of_a_path_keeps_nothing(inproc_house):
    worker = inproc_house.worker(model_path_history=None)
    inproc_house.start(worker.run)
    inproc_house.trainer().run()
    worker.close()
    assert kept_in(cfg.RUN_FOLDER) == {"metrics.jsonl", "run.json"}


def test_positional_arguments_in_partials_are_refused_with_wandb():
    training = partial(
        TrainingOffline, CountingEnv, memory_cls=ListMemory, training_agent_cls=CountingAgent
    )
    with (
        Trainer(training, checkpoint_path=None, transport="inproc") as trainer,
        pytest.raises(ConfigError, match="positional arguments"),
    ):
        trainer.run_with_wandb()
