"""A CUDA program without a library of its own: it speaks with the driver through libcuda.so.1, by ctypes alone.

Prints one line of JSON: the GPUs that it sees, and whether memory of the first keeps what is written into it.
"""

from __future__ import annotations

import ctypes
import glob
import json

BYTES = 1 << 20


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        result = getattr(cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    call("cuInit", 0)
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGetCount", ctypes.byref(count))
    call("cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(100)
    call("cuDeviceGetName", name, 100, device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    memory, back = ctypes.c_uint64(), ctypes.create_string_buffer(BYTES)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(0x5A), ctypes.c_size_t(BYTES))
    call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(BYTES))
    kept = back.raw == b"\x5a" * BYTES
    files = sorted(glob.glob("/dev/nvidia[0-9]*"))
    print(json.dumps({"count": count.value, "name": name.value.decode(), "kept": kept, "files": files}))


main()
