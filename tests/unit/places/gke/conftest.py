from tests.unit.engine.conftest import world

__all__ = ["world"]
