"""Server, trainer and worker that find each other by a host name, which is then removed; run by
`test_names.py` with its own /etc/hosts.

python named_server.py FOLDER TRANSPORT
"""

import logging
import sys
from pathlib import Path

from chaos.chaos_rig import Place
from kit.waiting import until
from running import drives_on, driving

HOSTS, NAME = Path("/etc/hosts"), "server.tmrl.test"
NUMERIC = Place.dial


def dial_by_name(place, port=None):
    return NUMERIC(place, port) | {"server_ip": NAME}


def main(folder, transport):
    known = f"127.0.0.1 localhost\n127.0.0.1 {NAME}\n"
    HOSTS.write_text(known)
    Place.dial = dial_by_name
    with driving(folder, transport) as (rig, server, trainer, worker):
        HOSTS.write_text("127.0.0.1 localhost\n")
        server.close()
        until(lambda: not worker.link.connected.is_set(), "the worker is on its own")
        server = rig.server()
        drives_on(rig, 500)
        assert not server.workers(), "the name was not needed"
        HOSTS.write_text(known)
        rig.wait_for_samples(trainer, within_s=60.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(name)s: %(message)s")
    main(Path(sys.argv[1]), sys.argv[2])
