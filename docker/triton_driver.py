"""Compiles Triton's driver module into TRITON_CACHE_DIR, on a machine without a GPU; nothing where Triton is absent.

Triton compiles it at its first use, under a key that depends on its own sources alone. The driver's library that it
links is stood for by an empty one of the same name.
"""

import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

if importlib.util.find_spec("triton") is not None:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so.1"
        command = ["gcc", "-shared", "-x", "c", os.devnull, f"-Wl,-soname,{library.name}", "-o", str(library)]
        subprocess.run(command, check=True)
        os.environ["TRITON_LIBCUDA_PATH"] = folder
        from triton.backends.nvidia.driver import CudaUtils

        try:
            CudaUtils()
        except ImportError as error:  # it is cached before it is loaded, which the empty library does not bear
            print(f"compiled, as expected not loaded: {error}")
    assert list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("cuda_utils*.so")), "Triton's driver module was not cached"
