"""Samples that come too late are kept out of the memory; `test_checkpoints` tests how the samples
around them join.
"""

import re

import pytest

from tmrl_like.trainer.sample_ages import FreshnessLimits
from tmrl_like.wire import messages as m

NOW = 1e9


def packet(age_s=0.0, version=1, samples=3, worker="w"):
    return m.SamplePacket(
        worker, 1, 1, max(1, samples), 1, 0, samples, 0, False, NOW - age_s, version
    )


@pytest.mark.parametrize(
    ("header", "is_taken"),
    [
        (packet(9.0, version=10), True),
        (packet(11.0, version=10), False),
        (packet(0.0, version=5), True),
        (packet(0.0, version=4), False),
        (packet(0.0, version=0), True),  # not from a published policy
        (packet(0.0, version=2000), True),  # from an earlier trainer
        (packet(11.0, samples=0), True),  # only reports of episodes
    ],
)
def test_a_packet_is_too_old_by_its_first_sample_or_its_oldest_policy(header, is_taken):
    limits = FreshnessLimits(max_age_s=10.0, max_lag_versions=5)
    assert limits.admit(header, NOW, 10) == is_taken
    assert limits.dropped_samples == (0 if is_taken else 3)


def test_that_samples_are_dropped_is_said_for_each_worker_and_limit_and_again_after_long(caplog):
    limits = FreshnessLimits(max_age_s=10.0, max_lag_versions=5)

    def said(worker, age_s, version=10, now=NOW):
        caplog.clear()
        assert not limits.admit(packet(age_s, version, worker=worker), now, 10)
        return " ".join(caplog.messages)

    assert re.search("arm.*30 s old", said("arm", 30.0))
    assert "leg" in said("leg", 3600.0)
    assert re.search("arm.*9 versions", said("arm", 0.0, version=1))
    assert said("arm", 31.0) + said("leg", 30.0) + said("arm", 0.0, version=1) == ""
    line = said("arm", 30.0, now=NOW + 3600.0)
    assert f"{limits.dropped_samples} samples" in line
    assert said("arm", 30.0, now=NOW + 3600.0) == ""
