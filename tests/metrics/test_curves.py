import json

import numpy as np
import pytest

from tmrl_like.metrics.curves import averaged, curve_of, plot_returns


def write(folder, *records):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def episode(minutes, return_, test=True):
    samples = int(100 * minutes)
    return {
        "kind": "episode",
        "time_s": 60 * minutes,
        "env_steps_total": samples,
        "test": test,
        "return": return_,
    }


def test_a_curve_is_of_test_episodes_or_of_the_others(tmp_path):
    round_ = {"kind": "round", "time_s": 60.0}
    episodes = episode(1, 5.0, test=False), episode(2, 7.0), episode(3, None)
    both = write(tmp_path / "both", round_, *episodes)
    assert [values.tolist() for values in curve_of(both)] == [[2.0], [200.0], [7.0]]
    training = write(tmp_path / "training", episode(1, 5.0, test=False))
    assert curve_of(training).returns.tolist() == [5.0]
    assert len(curve_of(tmp_path / "nobody").returns) == 0


@pytest.mark.parametrize(
    ("first_round", "returns"),
    [
        ({"time_s": 90.0}, [1.0, 2.0]),
        ({"time_s": 150.0, "env_steps_total": 3}, [2.0]),  # late: nobody had come
    ],
    ids=["killed after its checkpoint", "started over"],
)
def test_what_a_training_did_in_vain_is_left_out(tmp_path, first_round, returns):
    again = {"kind": "round"} | first_round, episode(3, 2.0)
    folder = write(tmp_path / "run", episode(1, 1.0), episode(2, 9.0), *again)
    assert curve_of(folder).returns.tolist() == returns


def test_returns_are_averaged_over_a_fifth_of_the_episodes_and_ten_at_most():
    of_25 = averaged(np.arange(25.0))
    assert of_25[:3].tolist() == [0.0, 0.5, 1.0]
    assert of_25[-1] == np.arange(19.0, 25.0).mean()
    assert averaged(np.arange(200.0))[-1] == np.arange(190.0, 200.0).mean()


def test_one_run_another_and_one_without_episodes_are_drawn(tmp_path):
    a = write(tmp_path / "a", *(episode(n, float(n)) for n in range(5)))
    b = write(tmp_path / "b", *(episode(n, 2.0 * n) for n in range(2, 9)))
    picture = tmp_path / "new" / "p.png"
    assert plot_returns(picture, [a, str(b), tmp_path], {"untrained": (1.0, 0.5)})
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="Format 'nothing' is not supported"):
        plot_returns(tmp_path / "p.nothing", [a])
