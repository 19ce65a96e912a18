from transport.conftest import machines, machines_for

__all__ = ["machines", "machines_for"]
