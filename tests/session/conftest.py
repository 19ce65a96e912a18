from transport.conftest import hasty, machines, machines_for

__all__ = ["hasty", "machines", "machines_for"]
