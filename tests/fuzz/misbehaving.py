"""Work that goes wrong in every way that a worker's process has to survive."""

import os
import signal
import time


def work(request, say):
    say("first step")
    if request == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif request == "leave":
        os._exit(3)
    elif request == "spin":
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
    elif request == "grow":
        kept = []
        while True:
            kept.append(bytearray(b"x") * 2**24)
    elif request == "grow and shrink":
        len(bytearray(b"x") * (2**28))
    elif request == "print":
        os.write(1, b"done nonsense\n")
    say("last step")
    return request
