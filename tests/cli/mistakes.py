"""Mistakes of new users, and the message for each."""

from typing import NamedTuple


class Mistake(NamedTuple):
    """A mistake: the command typed, a part of the one line that reports it, its exit code, and the
    fixture that prepares the surroundings.
    """

    typed: str
    said: str
    code: int = 2
    given: str = "tmp_path"


MISTAKES = {
    # -- what is typed
    "no command": Mistake("", "the following arguments are required: COMMAND"),
    "a command misspelt": Mistake(
        "serve TINY", "COMMAND: there is no 'serve'; did you mean server?"
    ),
    "no experiment": Mistake("server", "the following arguments are required: EXPERIMENT"),
    "an option misspelt": Mistake(
        "server TINY --log-lvel debug",
        "there is no option --log-lvel; did you mean --log-level?",
    ),
    "an option unknown": Mistake("server TINY --frost 3", "--frost; see tmrl-like server --help"),
    "an option that is gone": Mistake(
        "page TINY --operator", "the page only shows; take over at the robot"
    ),
    "a choice misspelt": Mistake(
        "server TINY --log-level inf", "there is no 'inf'; did you mean info?"
    ),
    "an argument too many": Mistake("server TINY more", "'more' is one argument too many"),
    "too few workers": Mistake("run TINY --workers 0", "--workers is 0; expected 1 or more"),
    "several trainers of a run": Mistake(
        "run TINY --trainers 2", "start `tmrl-like trainer` with torchrun"
    ),
    "one process for several workers": Mistake(
        "run TINY --in-process --workers 2", "worker.envs is the"
    ),
    "a key for no experiment": Mistake("keys list --server.port 3", "`keys` reads no experiment"),
    # -- keys and values of the experiment
    "a key without a value": Mistake(
        "config TINY --server.port --seed 1", "command line: --server.port needs a value"
    ),
    "a key below a value": Mistake(
        "config TINY --seed 1 --seed.x 2", "--seed.x: seed is 1, which has no keys"
    ),
    "all addresses as a host": Mistake(
        "worker TINY --server.host 0.0.0.0",
        "server.host is 0.0.0.0, all addresses of a machine, which nobody",
    ),
    "a learning rate below 0": Mistake(
        "check DRONE --agent.lr_actor -1",
        "command line: agent.init_args.lr_actor is -1; expected 0 or more",
    ),
    # -- what is not there
    "a device that is not there": Mistake(
        "trainer TINY --trainer.device cuda:99",
        "device is 'cuda:99'; torch has no such device on",
    ),
    "a transport that is missing": Mistake(
        "server TINY --server.transport tlspyo", "pip install tlspyo", given="without_tlspyo"
    ),
    "an environment misspelt": Mistake(
        "check TINY --delay-steps 0 --env tmrl_like.envs.GenericGymEnv --env.id Pendulm-v1",
        "no environment 'Pendulm-v1'",
    ),
    "no policy yet": Mistake("test TINY", "or drive without one with --untrained"),
    "no policy to record": Mistake("record TINY --out none", "or drive without one with --random"),
    "no such run": Mistake(
        "policies list drnoe",
        "there is no experiment and no run drnoe; did you mean drone?",
    ),
    "no such key to revoke": Mistake("keys revoke nobody", "no key is named 'nobody'"),
    "no name for a key": Mistake("keys invite ../x", "'../x' is not a name for a key"),
    "engine of our own": Mistake(
        "engine init", "an earlier version had it: start nats-server yourself"
    ),
    # -- the machine
    "a home that cannot be written to": Mistake(
        "server TINY", "cannot write keys to", 1, "home_is_a_file"
    ),
    "a run without a home": Mistake(
        "trainer TINY --trainer.checkpoint false --server.keys_dir keys",
        "cannot write: Not a directory",
        1,
        "home_is_a_file",
    ),
    "a full disk": Mistake(
        "trainer TINY --server.port 1", "No space left on device", 1, "disk_is_full"
    ),
    "a port that is taken": Mistake(
        "server TINY --server.port PORT", " on 127.0.0.1 is taken", 1, "port_is_taken"
    ),
    "an address of another machine": Mistake(
        "server TINY --server.bind 192.0.2.1", "expected an address of this machine", 1
    ),
    "a video nowhere": Mistake(
        "test TINY --untrained --video missing/x.mp4",
        "ending in .mp4, in a folder that exists",
    ),
    "a damaged key": Mistake("worker TINY --server.port 1", "peer.json", 1, "key_is_damaged"),
    "a key of another server": Mistake(
        "worker TINY --server.port PORT --server.limits.gives_up_after_s 0.1",
        "is not the server that this machine's key is for: check the address, or join",
        1,
        "key_is_of_another_server",
    ),
    "a server of another version": Mistake(
        "worker TINY --server.port PORT", "wire version", 1, "server_is_newer"
    ),
    # -- what does not go together
    "a window of the drone's own": Mistake(
        "config DRONE --env.render true",
        "earlier version had it: use `tmrl-like test EXPERIMENT --window",
    ),
    "an actor without act": Mistake(
        "config TINY --actor tiny.NoActor", "NoActor cannot be used here: it has no act"
    ),
    "weights of another network": Mistake(
        "test TINY",
        "pedal is (3,) instead of (1,); they are of another environment, actor class or arguments",
        1,
        "with_weights_of_another_network",
    ),
    "a checkpoint of another network": Mistake(
        "trainer TINY --server.port 1 --trainer.epochs 2",
        "(changed since the run's last start: actor.width was 3, is 1)",
        1,
        "with_a_run_of_another_network",
    ),
    "weights of the run's other network": Mistake(
        "test TINY",
        "(changed since the run's last start: actor.width was 3, is 1)",
        1,
        "with_a_run_of_another_network",
    ),
    "no track to record": Mistake(
        "record TINY --lap script --out x.npz", "script drives no lap of TinyEnv"
    ),
    # -- code of the user's
    "a constructor that raises": Mistake(
        "trainer TINY --env.fails true",
        "while it was made, to read its spaces: ConnectionError: no arm",
        1,
    ),
    "a worker's constructor that raises": Mistake(
        "worker TINY --server.port 1 --env.fails true",
        "raised in its constructor: ConnectionError: no arm (",
        1,
    ),
    "an environment that hangs": Mistake(
        "worker TINY --server.port 1 --env.hangs true --worker.hang_timeout_s 0.1",
        "the environment hangs: step() has not come back for 0.1 s (5 faults in a row; giving up)",
        1,
        given="faults_are_soon_over",
    ),
    "another shape": Mistake(
        "check TINY --delay-steps 0 --env.returns shape",
        "step 2: the observation is float32 (3,); the space says Box(-1.0, 1.0",
    ),
    "no observation": Mistake(
        "check TINY --delay-steps 0 --env.returns nothing",
        "the observation is NoneType None; the space says",
    ),
    "no reward": Mistake(
        "check TINY --delay-steps 0 --env.returns no_reward", "reward is None; expected a number", 1
    ),
    "no end": Mistake(
        "check TINY --delay-steps 0 --env.returns no_end",
        "step 2: terminated is None; expected True or False",
    ),
    "no info": Mistake(
        "check TINY --delay-steps 0 --env.returns no_info", "step 2: info is None; expected a dict"
    ),
    "four values": Mistake(
        "check TINY --delay-steps 0 --env=tiny.OldEnv",
        "; expected (observation, reward, terminated, truncated, info)",
    ),
    "a reset without info": Mistake(
        "check TINY --delay-steps 0 --env=tiny.OlderEnv",
        "the environment's reset() returned",
    ),
    "an action that is changed": Mistake(
        "check TINY --delay-steps 0 --env=tiny.ShiftingEnv",
        "step 1: the environment changes the action that it is given",
    ),
    "an observation that is changed": Mistake(
        "check TINY --delay-steps 0 --env=tiny.ReusingEnv",
        "step 1: the environment changes an observation that it has returned",
    ),
    "two dtypes": Mistake(
        "check TINY --delay-steps 0 --env.returns float16",
        "and that it always returns the same dtype",
        1,
    ),
    "not in the experiment's folder": Mistake(
        "check my_arm", "did you mean my_arm/my_arm.yaml?", given="init_without_cd"
    ),
    "the working folder": Mistake("test .", "there is no experiment and no run .; "),
    "a compressor that loses something": Mistake(
        "check TINY --delay-steps 0 --sample_compressor tiny.drop_the_second",
        "last_obs at element (1,) (1 of 2 elements differ)",
        1,
    ),
    "training that diverges": Mistake(
        "check TINY --delay-steps 0", "values that are not finite (loss)", 1, given="agent_diverges"
    ),
}
