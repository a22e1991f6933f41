"""First on PYTHONPATH: the clock of this process and all its children is TPUJOB_TEST_CLOCK_S seconds ahead."""

import os
import time

_time, _ahead_s = time.time, float(os.environ["TPUJOB_TEST_CLOCK_S"])
time.time = lambda: _time() + _ahead_s
