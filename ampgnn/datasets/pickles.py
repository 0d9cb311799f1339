"""Reading the few kinds of objects that the Planetoid files hold, without running what a pickle may ask for."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .base import DatasetError


class _Csr:
    """Receives the attributes of a pickled ``scipy.sparse.csr_matrix``."""

    def matrix(self) -> sp.csr_matrix:
        shape = getattr(self, "_shape", None) or self.shape
        return sp.csr_matrix((self.data, self.indices, self.indptr), shape=shape)


def _make(cls, base, state):
    if cls is not _Csr:
        raise pickle.UnpicklingError(f"object of {cls}")
    return _Csr()


def _array(subtype, shape, dtype):
    return np.ndarray(shape, np.dtype(dtype))


_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("scipy.sparse.csr", "csr_matrix"): _Csr,
    ("scipy.sparse._csr", "csr_matrix"): _Csr,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("__builtin__", "object"): object,
    ("builtins", "object"): object,
    ("copy_reg", "_reconstructor"): _make,
    ("copyreg", "_reconstructor"): _make,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None


def load(path: Path) -> np.ndarray | sp.csr_matrix | dict:
    """The array, sparse matrix or dictionary of lists in a pickle written by Python 2 or 3.

    Raises:
        DatasetError: the file is no pickle, is cut short or names anything but numpy arrays and scipy matrices.
    """
    with path.open("rb") as file:
        try:
            value = _Restricted(file, encoding="latin1").load()
        except Exception as error:
            raise DatasetError(f"{path.name} is refused: {' '.join(str(error).split())}") from None
    return value.matrix() if isinstance(value, _Csr) else value
