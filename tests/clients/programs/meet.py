"""A head that waits for so many workers, and its workers: what a Ray or Spark cluster inside a job does at its start.

python meet.py head ADDRESS PORT COUNT        prints who came
python meet.py worker ADDRESS PORT
"""

from __future__ import annotations

import os
import socket
import sys
import time

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "head":
    came = []
    with socket.create_server((address, port)) as server:
        for _ in range(int(sys.argv[4])):
            with server.accept()[0] as worker:
                came.append(worker.recv(100).decode())
    print(*sorted(came), sep="\n")
else:
    for _ in range(300):  # the head may come later
        try:
            with socket.create_connection((address, port)) as head:
                head.sendall(f"{os.uname().nodename} gpus {os.environ['CUDA_VISIBLE_DEVICES']}".encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    else:
        sys.exit("nobody answers")
