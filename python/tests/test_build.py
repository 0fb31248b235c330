"""The build of the package: its messages, and the name of its wheel."""

import importlib.util
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import REPOSITORY

HOOK = REPOSITORY / "python" / "hatch_build.py"


def load_hook():
    """Loads the hook, which needs hatchling."""
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@unittest.skipUnless(HOOK.is_file() and importlib.util.find_spec("hatchling"),
                     "this test needs the repository and hatchling")
class BuildTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hook = load_hook()

    def message_of(self, function, *arguments):
        with self.assertRaises(SystemExit) as caught:
            function(*arguments)
        return str(caught.exception.code)

    def test_missing_cargo_is_explained(self):
        with mock.patch.object(self.hook.shutil, "which", return_value=None):
            message = self.message_of(self.hook.cargo_build, REPOSITORY)
        for word in ("cargo was not found", "https://rustup.rs", "1.89", "LIBDIST_PREBUILT"):
            self.assertIn(word, message)

    def test_missing_compiler_is_explained(self):
        environment = {name: it for name, it in os.environ.items() if not name.startswith("CARGO")}
        environment.pop("LIBDIST_TARGET", None)
        with mock.patch.object(self.hook.shutil, "which", return_value=None), \
                mock.patch.dict(os.environ, environment, clear=True):
            message = self.message_of(self.hook.check_compiler)
        self.assertIn("no C compiler", message)
        self.assertIn("apt-get install gcc", message)

    def test_missing_source_is_explained(self):
        with tempfile.TemporaryDirectory() as folder:
            message = self.message_of(self.hook.cargo_build, Path(folder))
        self.assertIn("clone of the repository", message)

    def test_incomplete_prebuilt_folder_is_explained(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, {"LIBDIST_PREBUILT": folder}):
            message = self.message_of(self.hook.prebuilt_folder)
        self.assertIn("lacks dist-programs", message)

    def test_wheel_is_named_by_the_glibc_that_it_needs(self):
        needed = self.hook.needed_glibc(sys.executable)
        self.assertGreaterEqual(needed, (2, 0))
        with mock.patch.object(self.hook, "needed_glibc", side_effect=[(2, 17), (2, 31)]), \
                mock.patch.object(self.hook.platform, "libc_ver", return_value=("glibc", "2.36")), \
                mock.patch.dict(os.environ):
            os.environ.pop("LIBDIST_TARGET", None)
            tag = self.hook.platform_tag([Path("a"), Path("b")])
        self.assertRegex(tag, r"^manylinux_2_31_\w+$")
        with mock.patch.object(self.hook, "needed_glibc", return_value=(2, 17)), \
                mock.patch.object(self.hook.platform, "libc_ver", return_value=("glibc", "2.36")), \
                mock.patch.dict(os.environ, {"LIBDIST_TARGET": "x86_64-unknown-linux-gnu.2.28"}):
            self.assertRegex(self.hook.platform_tag([Path("a")]), r"^manylinux_2_28_\w+$")

    def test_file_that_is_no_elf_file_is_refused(self):
        with self.assertRaises(ValueError):
            self.hook.needed_glibc(__file__)


if __name__ == "__main__":
    unittest.main()
