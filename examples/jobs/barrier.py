"""All ranks meet at rank 0 over TCP, as a training framework's rendezvous does, and say which GPU they hold."""

import os
import socket
import time

rank = int(os.environ["SLURM_PROCID"])
world = int(os.environ["SLURM_NTASKS"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
mine = f"{socket.gethostname()}:{os.environ['CUDA_VISIBLE_DEVICES']}"


def serve() -> None:
    """Rank 0 waits for everybody, then lets everybody go."""
    with socket.create_server(address, backlog=world) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
        seen = {mine} | {peer.recv(256).decode() for peer in peers}
        for peer in peers:
            peer.sendall(b"go")
    hosts = sorted({name.split(":")[0] for name in seen})
    print(f"all {world} ranks met at {address[0]}:{address[1]}; {len(seen)} different GPUs on {', '.join(hosts)}")
    assert len(seen) == world, f"{world - len(seen)} ranks share a GPU"


def join() -> None:
    for _ in range(600):
        try:
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(mine.encode())
                assert peer.recv(2) == b"go"
            return
        except ConnectionRefusedError:  # rank 0 is not listening yet
            time.sleep(0.05)
    raise SystemExit(f"rank {rank} never reached {address[0]}:{address[1]}")


serve() if rank == 0 else join()
