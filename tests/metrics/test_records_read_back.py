from tmrl_like.metrics.reading import read_records, return_of


def test_what_a_kill_cut_off_costs_the_records_of_its_line_alone(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 0}\n{"b{"a": 1}\n{"a": 2}\n{"a":')
    assert list(read_records(path)) == [{"a": 0}, {"a": 2}]
    assert list(read_records(path, last_bytes=16)) == [{"a": 2}]
    assert list(read_records(str(tmp_path / "none"))) == []


def test_a_line_that_holds_no_record_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 0}\n[]\n3\nnull\n{"a": 1}\n')
    assert list(read_records(path)) == [{"a": 0}, {"a": 1}]


def test_the_returns_of_a_run_are_those_of_episodes_that_no_fault_cut_short():
    episode = {"kind": "episode", "return": 2.0, "fault": ""}
    others = {"kind": "round", "return": 3.0}, {"return": None}, {"fault": "the arm hangs"}
    assert [return_of(episode | other) for other in ({}, *others)] == [2.0, None, None, None]
