"""What a resumed run says about an experiment that has changed."""

SHORT = "run TINY --in-process --trainer.rounds 1 --trainer.steps 1 --trainer.epochs"


def test_a_run_that_goes_on_says_what_has_changed_since_its_last_start(typed):
    said = "goes on, with its earlier samples (changed since the run's last start: env.step_s was"
    first = typed(SHORT, 1, "--env.step_s 0.001")
    changed = typed(SHORT, 2, "--env.step_s 0.002 --env.ends_by never")
    same = typed(SHORT, 3, "--env.step_s 0.002 --env.ends_by never")
    anew = typed(SHORT, 1, "--env.step_s 0.001 --trainer.resume none")
    assert f"{said} 0.001, is 0.002; env.ends_by was empty, is never)" in changed.err
    assert not [other.err for other in (first, same, anew) if "goes on" in other.err]
