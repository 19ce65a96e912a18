"""Mistakes of new users: what is typed, and a part of the one line that is said."""

REFUSED = {  # with exit code 2
    # -- what is typed
    "": "the following arguments are required: COMMAND",
    "serve TINY": "COMMAND: there is no 'serve'; did you mean server?",
    "server": "the following arguments are required: EXPERIMENT",
    "server TINY --log-lvel debug": "there is no option --log-lvel; did you mean --log-level?",
    "server TINY --frost 3": "--frost; see tmrl-like server --help",
    "page TINY --operator": "the page only shows; take over at the robot",
    "server TINY --log-level inf": "there is no 'inf'; did you mean info?",
    "server TINY more": "'more' is one argument too many",
    "run TINY --workers 0": "--workers is 0; expected 1 or more",
    "run TINY --trainers 2": "start `tmrl-like trainer` with torchrun",
    "run TINY --in-process --workers 2": "worker.envs is the",
    "keys list --server.port 3": "`keys` reads no experiment",
    # -- keys and values of the experiment
    "config TINY --server.port --seed 1": "command line: --server.port needs a value",
    "config TINY --seed 1 --seed.x 2": "--seed.x: seed is 1, which has no keys",
    "worker TINY --server.host 0.0.0.0": (
        "server.host is 0.0.0.0, all addresses of a machine, which nobody"
    ),
    "check drone --agent.lr_actor -1": (
        "command line: agent.init_args.lr_actor is -1; expected 0 or more"
    ),
    # -- what is not there
    "trainer TINY --trainer.device cuda:99": "device is 'cuda:99'; torch has no such device on",
    "check TINY --delay-steps 0 --env tmrl_like.envs.GenericGymEnv --env.id Pendulm-v1": (
        "no environment 'Pendulm-v1'"
    ),
    "test TINY": "or drive without one with --untrained",
    "record TINY --out none": "or drive without one with --random",
    "policies list drnoe": "there is no experiment and no run drnoe; did you mean drone?",
    "test .": "no run .; `tmrl-like --help` lists experiments, `tmrl-like runs` runs",
    "keys revoke nobody": "no key is named 'nobody'",
    "keys invite ../x": "'../x' is not a name for a key",
    "engine init": "an earlier version had it: start nats-server yourself",
    "test TINY --untrained --video missing/x.mp4": "ending in .mp4, in a folder that exists",
    # -- what does not go together
    "config drone --env.render true": (
        "earlier version had it: use `tmrl-like test EXPERIMENT --window"
    ),
    "config TINY --actor tiny.NoActor": "NoActor cannot be used here: it has no act",
    "record TINY --lap script --out x.npz": "script drives no lap of TinyEnv",
    # -- code of the user's
    "check TINY --delay-steps 0 --env.returns shape": (
        "step 2: the observation is float32 (3,); the space says Box(-1.0, 1.0"
    ),
    "check TINY --delay-steps 0 --env.returns nothing": (
        "the observation is NoneType None; the space says"
    ),
    "check TINY --delay-steps 0 --env.returns no_end": (
        "step 2: terminated is None; expected True or False"
    ),
    "check TINY --delay-steps 0 --env.returns no_info": "step 2: info is None; expected a dict",
    "check TINY --delay-steps 0 --env=tiny.OldEnv": (
        "; expected (observation, reward, terminated, truncated, info)"
    ),
    "check TINY --delay-steps 0 --env=tiny.OlderEnv": "the environment's reset() returned",
    "check TINY --delay-steps 0 --env=tiny.ShiftingEnv": (
        "step 1: the environment changes the action that it is given"
    ),
    "check TINY --delay-steps 0 --actor tiny.LoudActor": (
        "step 1: the action is not in the action space: "
    ),
}

FAILED = {  # with exit code 1
    "server TINY --server.bind 192.0.2.1": "expected an address of this machine",
    "trainer TINY --env.fails true": (
        "while it was made, to read its spaces: ConnectionError: no arm"
    ),
    "worker TINY --server.port 1 --env.fails true": (
        "raised in its constructor: ConnectionError: no arm ("
    ),
    "check TINY --delay-steps 0 --env.returns no_reward": "reward is None; expected a number",
    "check TINY --delay-steps 0 --env.returns float16": "and that it always returns the same dtype",
    "check TINY --delay-steps 0 --sample_compressor tiny.drop_the_second": (
        "last_obs at element (1,) (1 of 2 elements differ)"
    ),
}

PREPARED = [  # the fixture that prepares the surroundings, and the exit code
    ("store", 2, "policies list tinny", "no run tinny; did you mean tiny?"),
    ("init_without_cd", 2, "check my_arm", "did you mean my_arm/my_arm.yaml?"),
    ("without_tlspyo", 2, "server TINY --server.transport tlspyo", "pip install tlspyo"),
    ("home_is_a_file", 1, "server TINY", "cannot write keys to"),
    (
        "home_is_a_file",
        1,
        "trainer TINY --trainer.checkpoint false --server.keys_dir keys",
        "cannot write: Not a directory",
    ),
    ("disk_is_full", 1, "trainer TINY --server.port 1", "No space left on device"),
    ("port_is_taken", 1, "server TINY --server.port PORT", " on 127.0.0.1 is taken"),
    ("key_is_damaged", 1, "worker TINY --server.port 1", "peer.json"),
    (
        "key_is_of_another_server",
        1,
        "worker TINY --server.port PORT --server.limits.gives_up_after_s 0.1",
        "is not the server that this machine's key is for: check the address, or join",
    ),
    ("server_is_newer", 1, "worker TINY --server.port PORT", "wire version"),
    (
        "with_weights_of_another_network",
        1,
        "test TINY",
        "pedal is (3,) instead of (1,); they are of another environment, actor class or arguments",
    ),
    (
        "with_a_run_of_another_network",
        1,
        "trainer TINY --server.port 1 --trainer.epochs 2",
        "(changed since the run's last start: actor.width was 3, is 1)",
    ),
    (
        "with_a_run_of_another_network",
        1,
        "test TINY",
        "(changed since the run's last start: actor.width was 3, is 1)",
    ),
    (
        "faults_are_soon_over",
        1,
        "worker TINY --server.port 1 --env.hangs true --worker.hang_timeout_s 0.1",
        "the environment hangs: step() has not come back for 0.1 s (5 faults in a row; giving up)",
    ),
    ("agent_diverges", 1, "check TINY --delay-steps 0", "values that are not finite (loss)"),
]

MISTAKES = [
    *(("own_home", 2, *mistake) for mistake in REFUSED.items()),
    *(("own_home", 1, *mistake) for mistake in FAILED.items()),
    *PREPARED,
]
