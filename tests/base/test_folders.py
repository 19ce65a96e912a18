"""Where the files of tmrl_like are."""

from pathlib import Path

import pytest

from tmrl_like.base.folders import ROOT_VARIABLE, data_folder
from tmrl_like.errors import ConfigError


def test_the_users_home_may_be_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, "~/training")
    assert data_folder() == Path.home() / "training"


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch):
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="set TMRL_LIKE_HOME"):
        data_folder()
