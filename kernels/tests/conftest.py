import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported: its kernels run on CPU tensors
