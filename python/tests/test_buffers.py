"""The memory of arguments: every kind of object, and clear errors for the others."""

import array
import ctypes
import gc
import unittest

import numpy

import libdist as dist
from libdist import _buffers


class OnlyInterface:
    """An object that has nothing but `__array_interface__`."""

    def __init__(self, base):
        self.base = base

    @property
    def __array_interface__(self):
        return self.base.__array_interface__


class OnlyDlpack:
    """An object that has nothing but DLPack."""

    def __init__(self, base):
        self.base = base

    def __dlpack__(self, **options):
        return self.base.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.base.__dlpack_device__()


class BufferTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = dist.HashStore()
        cls.group = dist.Group.create(cls.store, 0, 1, "one rank")

    @classmethod
    def tearDownClass(cls):
        cls.group.release()

    def test_kinds_of_objects_are_read_without_copies(self):
        numbers = numpy.arange(4.0)
        for source in (numbers, OnlyInterface(numbers), OnlyDlpack(numbers), memoryview(numbers)):
            buffer = _buffers.read(source)
            self.assertEqual((buffer.address, buffer.count), (numbers.ctypes.data, 4), source)
            self.assertEqual(buffer.dtype, dist._abi.DIST_F64)
            self.assertTrue(buffer.is_writable)
        for source, expected in (
            (array.array("d", [1, 2]), dist._abi.DIST_F64),
            (array.array("l", [1, 2]), dist._abi.DIST_I64),
            (array.array("H", [1, 2]), dist._abi.DIST_U16),
            (bytearray(2), dist._abi.DIST_U8),
            ((ctypes.c_float * 2)(), dist._abi.DIST_F32),
            ((ctypes.c_long * 2)(), dist._abi.DIST_I64),
            (numpy.zeros(2, "?"), dist._abi.DIST_BOOL),
            (memoryview(numpy.zeros(2, "c8")), dist._abi.DIST_C64),
        ):
            buffer = _buffers.read(source)
            self.assertEqual((buffer.dtype, buffer.count), (expected, 2), source)
            self.assertTrue(buffer.is_writable)
        self.assertFalse(_buffers.read(b"ab").is_writable)

    def test_types_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        for kind, expected in (
            (ml_dtypes.bfloat16, dist._abi.DIST_BF16),
            (ml_dtypes.float8_e4m3fn, dist._abi.DIST_F8E4M3),
            (ml_dtypes.float8_e5m2, dist._abi.DIST_F8E5M2),
        ):
            x = numpy.ones(3, kind)
            self.assertEqual(_buffers.read(x).dtype, expected)
            self.assertEqual(self.group.all_gather(x).dtype, x.dtype)

    def test_results_have_the_kind_of_the_argument(self):
        self.assertIsInstance(self.group.all_gather(numpy.ones(2)), numpy.ndarray)
        gathered = self.group.all_gather(array.array("f", [1, 2]))
        self.assertEqual((gathered.tolist(), gathered.format), ([1.0, 2.0], "f"))
        data = bytearray(b"ab")
        self.assertIs(self.group.all_reduce(data), data)
        # Two dimensions, and an empty array.
        self.assertEqual(self.group.all_gather(numpy.ones((2, 3))).shape, (1, 2, 3))
        self.assertEqual(self.group.all_gather(numpy.ones((0, 3))).shape, (1, 0, 3))
        self.assertEqual(self.group.all_reduce(numpy.array(2.0)), 2.0)

    def test_torch_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        x = torch.ones(3, dtype=torch.bfloat16)
        self.assertIs(self.group.all_reduce(x), x)
        self.assertEqual(self.group.all_gather(x).shape, (1, 3))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.group.all_reduce(torch.ones(4, 4).t())

    def test_jax_arrays_are_reduced_out_of_place(self):
        try:
            import jax.numpy as jnp
        except ImportError:
            self.skipTest("jax is not installed")
        for kind in ("float32", "bfloat16", "int32"):
            x = jnp.arange(4).astype(kind)
            result = self.group.all_reduce(x, "sum")
            self.assertIsInstance(result, type(x))
            self.assertIsNot(result, x)
            self.assertEqual((result.dtype, result.tolist()), (x.dtype, x.tolist()))
            self.assertEqual(self.group.all_gather(x).shape, (1, 4))

    def test_refusals_say_what_to_do(self):
        read_only = numpy.ones(2)
        read_only.flags.writeable = False
        for source, kind, words in (
            (numpy.ones((4, 4)).T, ValueError, "ascontiguousarray"),
            (numpy.ones(4)[::2], ValueError, "contiguous in C order"),
            (memoryview(numpy.ones(4))[::2], ValueError, "contiguous"),
            (read_only, ValueError, "read-only"),
            ([1, 2], TypeError, "numpy, torch or JAX"),
            (1.5, TypeError, "numpy, torch or JAX"),
            (numpy.array(["text"]), TypeError, "no call supports"),
            (numpy.ones(2, ">f4"), TypeError, "byte order"),
            (numpy.array([None]), TypeError, "no call supports"),
        ):
            with self.assertRaisesRegex(kind, words):
                self.group.all_reduce(source)

    def test_memory_is_kept_by_the_buffer_and_freed_after_it(self):
        data = bytearray(8)
        buffer = _buffers.read(data)
        with self.assertRaises(BufferError):
            data.extend(b"x")
        del buffer
        gc.collect()
        data.extend(b"x")

    def test_arena_memory_outlives_its_views(self):
        x = self.group.empty((3, 5), "f64")
        x[...] = 1
        row = x[1]
        del x
        gc.collect()
        row += 1
        self.assertEqual(row.tolist(), [2.0] * 5)
        self.assertEqual(self.group.empty(0).size, 0)
        self.assertEqual(self.group.empty(3, "i32").dtype, numpy.int32)


if __name__ == "__main__":
    unittest.main()
