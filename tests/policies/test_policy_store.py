"""The store of a run's policies on disk."""

import os

import msgspec
import numpy as np
import pytest
from kit.boxes import box
from kit.fakes import LinearActor

from tmrl_like.base.files import disk
from tmrl_like.base.folders import ROOT_VARIABLE
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.policy_file import describe, read_card, write_policy
from tmrl_like.policies.policy_store import TESTS, PolicyStore, find_policy

SPACES = box(1, 3), box(1, 2)
ACTOR = LinearActor(*SPACES)
CARD = describe(ACTOR)


@pytest.fixture
def store(tmp_path):
    return PolicyStore(tmp_path / "runs" / "drone" / "policies")


def add(store, *versions):
    for version in versions:
        store.add(ACTOR.weights(), msgspec.structs.replace(CARD, version=version))


def version_of(path):
    return read_card(path).version


def test_a_policy_that_is_not_there_is_refused_and_what_there_is_named(store):
    with pytest.raises(
        PolicyError,
        match=r"no policy newest in .*policies; versions: none; tags: none \(it is on the",
    ):
        store.find("newest")
    add(store, 3, 4)
    store.tag("3", "good")
    with pytest.raises(PolicyError, match=r"no policy 5 .*; versions: 3 to 4; tags: good"):
        store.find("5")
    with pytest.raises(PolicyError, match=r"did you mean good\?"):
        store.find("goood")
    with pytest.raises(PolicyError, match=r"no policy best .*; tags: good"):
        store.find("best")


def test_the_newest_versions_stay_and_those_with_a_tag(store):
    add(store, *range(1, 11))
    store.tag("2", "good")
    store.collect(at_most=3)
    assert store.versions() == [8, 9, 10]
    assert version_of(store.find("good")) == version_of(store.find("2")) == 2
    store.collect(at_most=0)  # the newest is never removed
    assert store.versions() == [10]


def test_a_policy_is_found_by_its_tag_while_the_tag_moves(store, monkeypatch):
    add(store, 1, 2)
    store.tag("1", "good")

    def rename(*names):
        assert version_of(store.find("good")) == 1
        os.replace(*names)

    monkeypatch.setattr(disk, "rename", rename)
    store.tag("2", "good")
    assert version_of(store.find("good")) == 2


@pytest.mark.parametrize("name", ["", "1200", "newest", "../good", "a b", ".a", "a" * 65])
def test_a_tag_is_no_number_and_no_path(name, store):
    add(store, 1)
    with pytest.raises(ConfigError, match="expected a letter, then"):
        store.tag("1", name)


def test_the_best_is_the_version_whose_worst_of_three_test_episodes_is_best(store):
    add(store, 1, 2, 3, 4)
    for version, return_, changed, best in (
        (1, 5.0, True, 1),  # there is no other policy
        (2, 99.0, False, 1),  # a single episode may be luck
        (2, 98.0, False, 1),
        (2, 3.0, True, 2),  # the first one tested often enough
        (3, 50.0, False, 2),
        (3, 60.0, False, 2),
        (3, 2.0, False, 2),  # its re-test falls short, whatever its mean
        (4, 3.0, False, 2),
        (4, 4.0, False, 2),
        (4, 3.0, False, 2),  # a tie
        (1, 4.0, False, 2),
        (1, 5.0, True, 1),
        (1, 2.0, True, 2),  # further tests put it behind another
    ):
        assert store.add_return(version, return_) == changed * best
        assert version_of(store.find("best")) == best
    card = read_card(store.find("3"))
    returns = [50.0, 60.0, 2.0]
    assert (card.return_, card.episodes, card.worst) == (pytest.approx(np.mean(returns)), 3, 2.0)
    assert card.std == pytest.approx(np.std(returns, ddof=1))
    assert read_card(store.find("best")).worst == 3.0


def test_the_steps_of_an_earlier_training_are_kept_under_another_tag(store):
    add(store, 1)
    store.tag_steps(1, 20)
    add(resumed := PolicyStore(store.folder, earlier=1), 2)
    resumed.tag_steps(2, 20)
    assert [version_of(store.find(tag)) for tag in ("step-20", "step-20-1")] == [2, 1]


def test_a_policy_stays_readable_whatever_its_finite_returns(store):
    add(store, 1)
    for return_ in (-1.7e308, 1e160, 1.7e308):
        store.add_return(1, return_)
    for name in ("1", "best"):
        card = read_card(store.find(name))
        assert (card.episodes, np.isfinite([card.return_, card.std, card.worst]).all()) == (3, True)


def test_a_version_that_may_be_tested_again_stays(store):
    add(store, 1, 2, 3)
    store.add_return(1, 5.0)
    store.add_return(2, 9.0)
    add(store, 4, 5)
    store.collect(at_most=1)
    assert store.versions() == [1, 2, 5]
    assert [store.add_return(2, 9.0), store.add_return(2, 8.0)] == [0, 2]
    assert read_card(store.find("best")).worst == 8.0


def test_the_best_stays_when_its_version_goes_and_when_the_run_is_resumed(store):
    add(store, 1, 2, 3)
    for _ in range(3):
        store.add_return(1, 5.0)
    resumed = PolicyStore(store.folder)
    resumed.collect(at_most=1)
    assert resumed.versions() == [3]
    assert not resumed.add_return(1, 4.0)
    best = read_card(resumed.find("best"))
    assert (best.worst, best.episodes) == (4.0, 4)
    assert [resumed.add_return(3, return_) for return_ in (4.5, 4.75, 4.5)] == [0, 0, 3]
    assert version_of(resumed.find("best")) == 3
    with pytest.raises(PolicyError, match="no policy 2"):
        resumed.add_return(2, 9.0)


def test_a_tag_knows_the_tests_that_its_version_passes_later(store):
    add(store, 1)
    store.add_return(1, 10.0)
    store.tag("1", "arm")  # before `best` in the alphabet
    for _ in range(2):
        store.add_return(1, 10.0)
    resumed = PolicyStore(store.folder)
    add(resumed, *range(2, 7))
    resumed.collect(at_most=3)
    assert [read_card(resumed.path(tag)).episodes for tag in resumed.tags()] == [3, 3]
    assert [resumed.add_return(6, -50.0) for _ in range(3)] == [False] * 3


def test_a_file_of_another_run_with_a_versions_number_stays_as_it_is(store):
    add(store, 1)
    foreign = msgspec.structs.replace(CARD, version=1, published_at_s=1.0)
    write_policy(store.path("foreign"), ACTOR.weights(), foreign)
    store.add_return(1, 10.0)
    assert read_card(store.path("foreign")) == foreign


def test_policies_of_an_earlier_training_do_not_compete_and_its_best_gets_another_name(store):
    add(store, 1, 2)
    for _ in range(TESTS):
        store.add_return(2, 99.0)
    new = PolicyStore(store.folder, earlier=2)
    add(new, 3)
    assert not new.add_return(2, 98.0)  # a worker still drove it
    assert version_of(new.find("best")) == 2
    assert new.add_return(3, 5.0)
    assert (version_of(new.find("best")), version_of(new.find("best-2"))) == (3, 2)


@pytest.mark.parametrize("form", ["{folder}", "{folder}@2", "{store}@2", "me@home@2", "{file}"])
def test_a_policy_is_named_by_its_file_a_folder_or_a_run(form, tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    store = PolicyStore(tmp_path / "runs" / "me@home" / "policies")
    add(store, 1, 2)
    place = form.format(folder=store.folder.parent, store=store.folder, file=store.path(2))
    assert find_policy(place).read_bytes() == store.path(2).read_bytes()
    missing = r"there are no policies at drone@best: .*looked for drone.policies and .*runs"
    with pytest.raises(PolicyError, match=missing):
        find_policy("drone@best")


def test_policies_that_are_removed_meanwhile_are_passed_over(store):
    add(store, 1, 2, 3)
    cards = store.cards()
    assert next(cards)[0] == "1"
    store.path(2).unlink()
    assert [name for name, _ in cards] == ["3"]


def test_weights_that_say_nothing_are_passed_over(store):
    add(store, 1)
    ACTOR.save(store.path(2))
    assert not store.add_return(2, 1.0)
    assert [name for name, _ in store.cards()] == ["1"]
