"""Training from recorded samples, without server and worker."""

import pytest
from in_threads import ThreadRanks, all_at_once
from kit.fakes import CountingAgent, ListMemory
from kit.trainings import Standing, delivery
from kit.trainings import training as training_of

from tmrl_like import Trainer, partial
from tmrl_like.errors import ConfigError, FinishedError, ShortageError
from tmrl_like.metrics.starts import read_starts
from tmrl_like.policies.policy_store import PolicyStore
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.trainer import connecting
from tmrl_like.trainer.connecting import OFFLINE, expect_no_worker
from tmrl_like.trainer.options import TrainerOptions


@pytest.fixture
def recorded(tmp_path):
    """A data set of 18 samples."""
    write_data_set(
        tmp_path / "recorded", [delivery("a", entry, resets=False).buffer for entry in range(6)]
    )
    return tmp_path / "recorded"


def training(path="", **fields):
    memory = partial(ListMemory, dataset_path=path)
    fields = {"epochs": 2, "steps": 50, "device": "cpu"} | fields
    return partial(training_of, memory_cls=memory, batch_size=2, **fields)


@pytest.fixture
def places(tmp_path):
    """The paths of all that a trainer writes."""
    return {
        "checkpoint_path": tmp_path / "c",
        "metrics_path": tmp_path / "m.jsonl",
        "model_path": tmp_path / "p",
        "policies_path": tmp_path / "policies",
        "sinks": [],
    }


@pytest.fixture
def offline(places):
    return lambda *arguments, **fields: Trainer(
        training(*arguments, **fields), **places, connect=OFFLINE
    )


@pytest.mark.parametrize("resume", ["all", "none"])
def test_it_trains_to_its_end_keeps_policies_and_goes_on_from_its_checkpoint(
    resume, tmp_path, recorded, places, offline, monkeypatch
):
    monkeypatch.delattr(connecting, "dial")
    places["options"] = TrainerOptions(resume=resume)
    with offline(recorded, update_model_interval=100) as trainer:
        trainer.run()
    assert (trainer.training.total_updates, trainer.training.total_samples) == (200, 17)
    store = PolicyStore(tmp_path / "policies")
    assert store.versions() == [1, 2, 3, 4, 5]  # initially, twice meanwhile, after each epoch
    assert [card.training_steps for _, card in store.cards()] == [0, 100, 100, 200, 200]
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 4
    if resume == "none":  # torchrun has started it again
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with offline(recorded, epochs=3) as trainer:
        trainer.run()
        with pytest.raises(FinishedError):
            trainer.run()
    assert (trainer.training.agent.steps, trainer.link.newest_version) == (300, 8)


def test_the_gpu_that_trains_is_noted(tmp_path, recorded, offline, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", "the GPU {}".format)
    with offline(recorded) as trainer:
        trainer.training.device = "cuda:1"
        trainer.run()
    assert read_starts(tmp_path)[-1].gpu == "the GPU cuda:1"


def test_only_the_time_that_a_trainer_runs_counts(recorded, offline):
    with offline(recorded, cls=Standing, max_minutes=1.0) as trainer:
        trainer.training.now += 3600.0
        trainer.training.agent_scheduler = lambda agent, epoch: trainer.stop()
        trainer.run()
        trainer.training.now += 3600.0
        trainer.training.agent_scheduler = None
        trainer.run()
        assert trainer.training.total_updates == 200


@pytest.mark.parametrize(
    "words",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes",  # on Windows
        "CUDA out of memory. Tried to allocate 8 bytes",
    ],
)
def test_training_without_memory_is_one_line_on_each_system(tmp_path, recorded, offline, words):
    class Agent(CountingAgent):
        def train(self, batch):
            raise RuntimeError(words)

    with (
        offline(recorded, agent_cls=Agent) as trainer,
        pytest.raises(ShortageError, match=words[:20]),
    ):
        trainer.run()
    assert read_starts(tmp_path)[-1].ended.startswith("failed: ShortageError: no memory")


def test_without_samples_it_does_not_begin(recorded, offline):
    with pytest.raises(
        ConfigError,
        match=r"^the memory holds no transition, and offline no worker sends any: name a",
    ):
        offline()
    with pytest.raises(
        ConfigError,
        match=r"^start_training is 18, and only 17 samples count offline",
    ):
        offline(recorded, start_training=18)


def test_what_ranks_have_read_counts_once_and_is_trained_on_without_limit_after_lockstep_too(
    recorded,
):
    def prepare(rank):
        to = training(recorded)()
        to.join(rank)
        to.pacer.enter_lockstep(0)
        expect_no_worker(to)
        return to.total_samples, to.pacer.may_train(10**6, to.total_samples)

    assert all_at_once(ThreadRanks.of(2), prepare) == [(17, True)] * 2
