"""First on PYTHONPATH: this process and all its children believe that it is TPUJOB_TEST_CLOCK_S seconds later."""

import os
import time

_time, _ahead_s = time.time, float(os.environ["TPUJOB_TEST_CLOCK_S"])
time.time = lambda: _time() + _ahead_s
