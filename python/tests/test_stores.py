"""Key-value stores of all kinds."""

import os
import tempfile
import threading
import unittest

import libdist as dist


class DictStore:
    """A store over a dict, for `CustomStore`."""

    def __init__(self):
        self.values: dict = {}
        self.changed = threading.Condition()

    def set(self, key, value, timeout):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, timeout):
        self.wait([key], timeout)
        return self.values[key]

    def add(self, key, amount, timeout):
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = b"%d" % total
            self.changed.notify_all()
            return total

    def wait(self, keys, timeout):
        with self.changed:
            there = self.changed.wait_for(lambda: all(it in self.values for it in keys), timeout)
            if not there:
                raise TimeoutError(keys)

    def check(self, keys, timeout):
        return all(it in self.values for it in keys)

    def delete_key(self, key, timeout):
        return self.values.pop(key, None) is not None

    def compare_set(self, key, expected, desired, timeout):
        with self.changed:
            value = self.values.get(key)
            if value == expected or (value is None and not expected):
                self.values[key] = value = desired
            return expected if value is None else value

    def append(self, key, value, timeout):
        with self.changed:
            self.values[key] = self.values.get(key, b"") + value

    def num_keys(self, timeout):
        return len(self.values)

    def list_keys(self, timeout):
        return list(self.values)


class StoreTest(unittest.TestCase):
    def exercise(self, store):
        store.set("a", b"1")
        store.set("text", "grün")
        self.assertEqual(store.get("text").decode(), "grün")
        self.assertEqual((store.get("a"), store.add("n", 5), store.add("n", -2)), (b"1", 5, 3))
        self.assertEqual(store.compare_set("a", b"1", b"2"), b"2")
        self.assertEqual(store.compare_set("a", b"1", b"3"), b"2")
        store.append("a", b"x")
        store.multi_set({"b": b"b", "c": b""})
        self.assertEqual(store.multi_get(["a", "b", "c"]), [b"2x", b"b", b""])
        self.assertTrue(store.check(["a", "b"]))
        self.assertFalse(store.check(["a", "missing"]))
        self.assertIn(b"b", store.list_keys())
        self.assertGreaterEqual(store.num_keys(), 5)
        self.assertTrue(store.delete_key("b"))
        self.assertFalse(store.delete_key("b"))
        store.queue_push("q", b"first")
        store.queue_push("q", b"second")
        self.assertEqual((store.queue_len("q"), store.queue_pop("q")), (2, b"first"))
        self.assertEqual(store.queue_pop("q", block=False), b"second")
        with self.assertRaises(dist.QueueEmpty):
            store.queue_pop("q", block=False)
        with self.assertRaises(dist.Timeout) as caught:
            store.wait(["missing"], 0.05)
        self.assertIn("missing", str(caught.exception))
        with self.assertRaises(dist.NotANumber):
            store.add("text", 1)
        store.barrier("b1", 1)
        inner = store.prefix("p")
        inner.set("k", b"v")
        self.assertEqual(store.get("p/k"), b"v")
        other = store.clone()
        other.timeout = 0.0
        with self.assertRaises(dist.Timeout):
            other.get("missing")
        late = threading.Timer(0.1, store.set, ("late", b"now"))
        late.start()
        self.assertEqual(store.get("late"), b"now")
        late.join()

    def test_hash_store(self):
        self.exercise(dist.HashStore())

    def test_tcp_store_and_its_secret(self):
        with dist.TcpStore("127.0.0.1", 0, is_server=True, wait_for_workers=False,
                           secret=b"job") as store:
            self.exercise(store)
            with dist.TcpStore("127.0.0.1", store.port, secret=b"job") as client:
                self.assertEqual(client.get("text").decode(), "grün")
                self.assertEqual((client.host, client.port), ("127.0.0.1", store.port))
            with self.assertRaises(dist.AuthFailed):
                dist.TcpStore("127.0.0.1", store.port, secret=b"other", timeout=5.0)

    def test_file_store(self):
        with tempfile.TemporaryDirectory() as folder:
            with dist.FileStore(os.path.join(folder, "store"), 1) as store:
                self.exercise(store)

    def test_custom_store(self):
        functions = DictStore()
        store = dist.CustomStore(functions)
        store.set("a", b"1")
        store.append("a", b"2")
        self.assertEqual((store.get("a"), store.add("n", 4)), (b"12", 4))
        self.assertEqual(store.compare_set("a", b"12", b"3"), b"3")
        self.assertEqual(sorted(store.list_keys()), [b"a", b"n"])
        self.assertEqual((store.num_keys(), store.check(["a"])), (2, True))
        self.assertTrue(store.delete_key("a"))
        store.queue_push("q", b"x")
        self.assertEqual(store.queue_pop("q"), b"x")
        with self.assertRaises(dist.Timeout):
            store.wait(["missing"], 0.05)
        del functions.values["n"]
        functions.add = lambda *_: 1 // 0
        with self.assertRaises(dist.BackendFailed):
            store.add("n", 1)
        self.assertIsInstance(store.error, ZeroDivisionError)

    def test_clone_of_a_custom_store_has_its_own_object(self):
        functions, second = DictStore(), DictStore()
        second.values = functions.values
        functions.clone = lambda _timeout: second
        store = dist.CustomStore(functions)
        copy = store.clone()
        functions.set = lambda *_: 1 // 0
        copy.set("a", b"1")
        self.assertEqual(store.get("a"), b"1")
        copy.release()
        store.release()

    def test_group_over_a_custom_store(self):
        store = dist.CustomStore(DictStore())
        results: list = []

        def rank(number):
            with dist.Group.create(store, number, 2, "threads") as group:
                results.append(group.all_gather_bytes(b"%d" % number))

        threads = [threading.Thread(target=rank, args=(it,)) for it in range(2)]
        for it in threads:
            it.start()
        for it in threads:
            it.join(60)
        self.assertEqual(results, [[b"0", b"1"]] * 2)


if __name__ == "__main__":
    unittest.main()
