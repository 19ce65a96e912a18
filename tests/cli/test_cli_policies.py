"""`tmrl-like policies`, and which policies `test` uses."""

import shutil

import pytest
from cli_commands import rows_in

from tmrl_like import load_policy
from tmrl_like.cli.arguments import to_type
from tmrl_like.policies.policy_store import PolicyStore


def test_policies_are_listed_tagged_and_exported(out_of, store, tmp_path):
    store.add_return(2, 5.0)
    tagged = out_of("policies tag tiny@1 first")
    assert f"{store.path('first')} is kept until you remove it" in tagged
    shown = [row for row in rows_in(out_of("policies list TINY")) if row[0].isdecimal()]
    assert [row[:2] for row in shown[:2]] == [["1", "first"], ["2", "best"]]
    assert [row[-4:-1] for row in shown] == [["10", "-", "0"], ["20", "5", "1"], ["30", "-", "0"]]
    file = tmp_path / "my policy.safetensors"
    exported = out_of("policies export TINY@best", file)
    assert f"`tmrl-like test EXPERIMENT --policy {to_type(file)}`" in exported
    assert load_policy(file, allow=("tiny",)).version == 2


def test_without_a_run_the_policies_of_all_runs_are_listed(out_of, store):
    run = store.folder.parent
    shutil.copytree(run, run.with_name("other"))
    run.with_name("without").mkdir()
    begins = [row[0] for row in rows_in(out_of("policies list"))]
    shown = [first for first in begins if first in ("1", "2", "3", "other", "tiny")]
    assert shown == ["other", "1", "2", "3", "tiny", "1", "2", "3"]
    for folder in (run, run.with_name("other")):
        shutil.rmtree(folder / "policies")
    for words in ("policies list", "policies list tiny"):
        assert "no policies yet" in out_of(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tag tiny@9 good", "there is no policy 9"),
        ("tag tiny@3 12", "the tag is '12'; expected a letter"),
        *(
            (f"tag tiny@3 {tag}", f"the tag is '{tag}'; expected a name of your own")
            for tag in ("best", "Best", "best-2", "step-10", "newest")
        ),
        ("export tiny@bst f", "there is no policy bst in"),
        ("export tiny@3 f.safetensors --onnx", "expected a name that ends in .onnx"),
        ("export tiny@3 /dev/null/p.safetensors", "cannot write the policy to "),
        ("export tiny@3 p.onnx --onnx --allow tiny", "give it a method best_actions(obs)"),
        ("export tiny@3 p.safetensors --allow tiny", "--allow is ['tiny']; expected --onnx"),
    ],
)
def test_a_mistake_is_one_line(store, words, message, refused):
    assert message in refused("policies", words)


@pytest.mark.parametrize("words", ["export tiny@3 p.safetensors", "tag tiny@3 good"])
def test_a_damaged_policy_is_not_passed_on(store, words, refused):
    content = store.path("3").read_bytes()
    store.path("3").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "3.safetensors" in refused("policies", words)


def test_policies_are_listed_while_a_trainer_removes_old_ones(out_of, store, monkeypatch):
    cards = PolicyStore.cards

    def removed_meanwhile(self):
        for name, card in cards(self):
            self.path("1").unlink(missing_ok=True)
            yield name, card
        self.path("2").unlink()

    monkeypatch.setattr(PolicyStore, "cards", removed_meanwhile)
    begins = [row[0] for row in rows_in(out_of("policies list tiny"))]
    assert list(filter(str.isdecimal, begins)) == ["2", "3"]


def test_a_test_drives_a_version_a_tag_another_runs_policy_or_a_file(out_of, refused, store):
    store.tag("3", "good")
    file = shutil.copy(store.path(3), "copied")
    for policy in ("3", "good", "newest", f"{store.folder}@good", file):
        assert "100%" in out_of("test TINY --episodes 1 --policy", policy)
    assert "100%" not in out_of("test TINY --episodes 1 --policy tiny@1")
    error = refused("test TINY --policy gone")
    assert "--policy gone: there is no policy gone in" in error
    assert "`tmrl-like policies export` writes a file" in error
