"""The check of samples when they arrive at a trainer, which rejects a worker with one line."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from kit.fakes import CountingEnv, ListMemory
from kit.packets import TIMING

from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.replay import ReplayMemory, WithDemonstrations
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.replay.sample_check import SampleCheck
from tmrl_like.types import Buffer, Info, Sample
from tmrl_like.wire.packet import PacketWriter

F32 = np.float32
ENV = CountingEnv()
SPACES = ENV.observation_space, ENV.action_space  # Box (2,), Box (1,)
GOOD = Sample(np.zeros(1, F32), np.ones(2, F32), 1.0, False, False, {})


def changed(field, value):
    return GOOD._replace(**{field: value})


def block(*samples):
    writer = PacketWriter()
    for sample in samples:
        writer.append(tuple(sample), TIMING)
    return writer.block()


NOT_FINITE = {
    "a reward that is NaN": changed("rew", float("nan")),
    "a reward that is too large for float32": changed("rew", np.float64(1e300)),
    "a reward in an array": changed("rew", np.full((), np.nan)),
    "an observation that is NaN": changed("obs", np.array([1.0, np.nan], F32)),
    "an observation whose square is too large": changed("obs", np.array([1e30, 0.0], F32)),
    "an action that is infinite": changed("act", np.array([np.inf], F32)),
    "a half float": changed("obs", np.array([np.inf, 0.0], np.float16)),
}


TEXTS = {
    "text": changed("obs", "hello"),
    "text among numbers": changed("obs", (np.ones(2, F32), "x")),
    "a text for an action": changed("act", "left"),
    "a text for a reward": changed("rew", "1"),
}
WRONG = NOT_FINITE | TEXTS


@pytest.mark.parametrize("name", WRONG)
def test_values_that_are_not_finite_as_float32_and_text_are_refused(name):
    check = SampleCheck(*SPACES, ListMemory())
    check(block(*[GOOD] * 50))
    says = "is .*; expected arrays and num" if name in TEXTS else "holds .* not finite .* float32"
    with pytest.raises(MemoryContractError, match=rf"(act|obs|rew)\S* {says}"):
        check(block(*[GOOD] * 50, WRONG[name], GOOD))


def test_large_values_that_can_be_learnt_from_are_taken():
    large = changed("obs", np.array([1.8e19, -1e18], F32))[:2]
    sample = (*large, 2**63 - 1, False, False, {"x": float("nan")})
    SampleCheck(*SPACES, ReplayMemory())(block(*[sample] * 50))


def test_observations_may_be_anything_where_a_preprocessor_comes_first():
    check = SampleCheck(*SPACES, ReplayMemory(obs_preprocessor=np.nan_to_num))
    check(block(NOT_FINITE["an observation that is NaN"]))
    with pytest.raises(MemoryContractError):
        check(block(NOT_FINITE["a reward that is NaN"]))


@pytest.mark.parametrize("columns", [("speed",), ()])
def test_an_item_of_info_must_be_finite_where_the_memory_keeps_it(columns):
    check = SampleCheck(*SPACES, ReplayMemory(columns=columns))
    refused = pytest.raises(MemoryContractError, match=r"info\['speed'\] holds nan")
    with refused if columns else nullcontext():
        check(block(changed("info", {"speed": float("nan")})))


def test_a_memory_of_texts_and_a_space_of_texts_take_texts():
    class Texts(ListMemory):
        takes_text = True

    SampleCheck(*SPACES, Texts())(block(TEXTS["text"]))
    SampleCheck(spaces.Text(5), SPACES[1], ListMemory())(block(TEXTS["text"]))


@pytest.mark.parametrize(
    "sample",
    [
        changed("obs", np.ones(3, F32)),
        changed("obs", (np.ones(2, F32),) * 2),
        changed("act", np.ones((1, 1))),
    ],
)
def test_other_shapes_than_the_spaces_say_are_refused_where_the_compressor_is_known(sample):
    with pytest.raises(MemoryContractError, match=r"has arrays of the shapes .*; expected"):
        SampleCheck(*SPACES, ReplayMemory())(block(sample))
    # a user's memory may expect any structure from its compressor
    SampleCheck(*SPACES, ListMemory())(block(sample))


def test_what_the_memorys_own_compressor_leaves_is_expected():
    box = spaces.Box(-1.0, 1.0, (1,), F32)
    tuples = spaces.Tuple((spaces.Box(0, 255, (4, 8, 8), np.uint8), spaces.Discrete(3), box, box))
    check = SampleCheck(tuples, box, ReplayMemory(act_buf_len=2, frame_stack={0: 4}))
    frame = np.zeros((8, 8), np.uint8)
    for obs in ((frame, 2), (np.int64(2), frame)):  # the memory accepts other containers and dtypes
        check(block(changed("obs", obs)))
    with pytest.raises(MemoryContractError):
        check(block(changed("obs", (np.zeros((4, 8, 8), np.uint8), 2))))


def test_a_memory_beside_a_compressor_of_the_users_own_takes_what_that_leaves():
    memory = ReplayMemory(act_buf_len=2)  # observations of the space are no tuples
    SampleCheck(*SPACES, memory)(block(changed("obs", (np.ones(2, F32),))))


@pytest.mark.parametrize(
    ("act_buf_len", "refused", "error"),
    [
        (2, CheckpointError, "does not fit this ReplayMemory: obs has arrays of the shapes"),
        (5, ConfigError, "this ReplayMemory with a data set .* is tuple of float32"),
    ],
)
def test_a_data_set_of_another_act_buf_len_is_refused(tmp_path, act_buf_len, refused, error):
    space = spaces.Tuple([spaces.Box(-1, 1, (2,))] + [spaces.Box(-1, 1, (1,))] * 3)
    sample = Sample(np.zeros(1, F32), (np.zeros(2, F32),), 0.0, False, False, Info())
    write_data_set(tmp_path, [Buffer([sample] * 9, "a")])
    both = {"observation_space": space, "action_space": SPACES[1]}
    plain = partial(ReplayMemory, act_buf_len=act_buf_len)
    for make in (
        partial(plain, dataset_path=tmp_path),
        partial(WithDemonstrations, plain, demonstrations_path=tmp_path),
    ):
        with pytest.raises(refused, match=f"{error}.*give the memory the act_buf_len"):
            make(**both)
