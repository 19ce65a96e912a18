"""`tmrl-like worker`: runs the environment and sends its samples."""

from __future__ import annotations

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.prepare import TO_COLLECT, policy_that_drives, prepare
from tmrl_like.cli.stopping import Stopper


def main(arguments: Arguments) -> int:
    """Collect samples until a stop is requested."""
    stopper = Stopper(arguments.supervised)
    experiment = prepare(arguments, (*TO_COLLECT, "on_worker_rollout", "takeover"))
    from tmrl_like.cli.best import hooks_of

    given = arguments.policy or arguments.found.version
    more = {
        "name": arguments.name,
        "policy": policy_that_drives(arguments) if given else None,
        "on_rollout": hooks_of(experiment),
    }
    with experiment.make_worker(**more) as worker:
        stopper.on_stop = worker.stop
        section, verbose = experiment.worker, not arguments.supervised
        if section.synchronous and not arguments.expert:
            worker.run_synchronous(
                test_episode_interval=section.test_episode_interval,
                initial_steps=max(1, experiment.trainer.start_training),
                end_episodes=False,
                verbose=verbose,
            )
        else:
            worker.run(section.test_episode_interval, verbose=verbose, expert=arguments.expert)
    return stopper.exit_code
