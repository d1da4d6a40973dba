#!/usr/bin/env python3
"""Stands where Triton looks for its model processes' program: closes sockets, then becomes it.

Triton hands every open file on to a model process that it starts while it serves, its connections
and its listening socket among them. Were it killed, these would stay open as long as the model
process lives: clients would wait for answers that nobody gives, and new connections would be taken
that nobody serves. The real program needs none of them; it talks through shared memory.
"""

import os
import sys

if __name__ == "__main__":
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execv(os.environ["GALLEY_TRITON_STUB"], sys.argv)  # noqa: S606 - becomes Triton's own
