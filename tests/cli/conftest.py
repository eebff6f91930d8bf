import logging

import pytest


@pytest.fixture(autouse=True)
def _library_logging():
    """Commands attach a handler to the library's logger; in one process it would outlive them."""
    logger = logging.getLogger("fahmc")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers, logger.level = handlers, level
    logging.disable(logging.NOTSET)
