"""What every Google API needs: credentials, one HTTP request, errors with advice; and Cloud Storage.

The APIs of all places stand on it, and it knows none of them.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.places.google import credentials as credentials
    from orchestrator.places.google import error_translation as error_translation
    from orchestrator.places.google import fetch as fetch
    from orchestrator.places.google import objects as objects
    from orchestrator.places.google import os_login as os_login
    from orchestrator.places.google import project_setup as project_setup
else:
    __getattr__ = modules_of(__name__)
