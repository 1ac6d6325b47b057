"""Build of the compiled modules of the package, which pyproject.toml cannot describe.

``extensions.txt`` lists the modules, a path a line. Each is Python that also runs uncompiled. So if one does not
compile, none is compiled, and the installation goes on; with ``TIDELOG_REQUIRE_EXTENSIONS=1`` it fails instead.
"""

import hashlib
import json
import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HEADERS = "src/tidelog/protocol/compiled"
DIRECTIVES = {
    "annotation_typing": False,  # types for C are declared in .pxd files
    "auto_pickle": False,  # nothing pickles these classes; the code for it would be a sixth of a class
    "binding": False,  # functions are plain built-ins, without an object of Cython's for each
    "boundscheck": False,
    "cdivision": True,
    "initializedcheck": False,
    "language_level": 3,
    "wraparound": False,
}
#: For ``make sanitize``: paths of the modules to compile with all checks. The others then run as plain Python.
SANITIZED = os.environ.get("TIDELOG_SANITIZE", "").split()
CHECKS = {"boundscheck": True, "initializedcheck": True}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1"]
#: Digests of the files that the modules in a checkout were built from; tests/conftest.py refuses modules of other
#: files.
STAMP = Path("build/extensions.json")
#: Long modules that mostly call methods of objects, as on the paths of produced and fetched batches: -O3 makes them no
#: faster (``python -m benchmarks.dispatch``), and takes twice as long to compile. Loops over bytes take 1.3 times the
#: time with -O2 (``python -m benchmarks.validation``).
CALLS = {
    "broker/handlers/fetch.py",
    "broker/replica/fetching/fetch_cursor.py",
    "log/files/file_records.py",
    "log/producer/state.py",
    "log/segment/segment.py",
    "log/unified_log.py",
}
#: Long modules with a few hot lines: optimized for size, or an idle broker holds 0.25 MB more.
SMALL = {
    "broker/replica/fetching/fetch_session.py",
    "broker/requests/direct.py",
    "log/system/file_system.py",
    "log/validation/validator.py",
}


class BuildExtensions(build_ext):
    """Compiles all modules, or none."""

    def run(self):
        if self.editable_mode and os.environ.get("TIDELOG_EXTENSIONS_LATER") == "1":
            self.extensions = self.distribution.ext_modules = []
            return
        try:
            self.compile_all()
        except Exception as error:  # without a compiler, headers or Cython, many types of error are possible
            if os.environ.get("TIDELOG_REQUIRE_EXTENSIONS") == "1":
                raise
            self.leave_out_all()
            print(f"tidelog: compiled: no ({type(error).__name__}: {error}); plain Python serves")
        else:
            print(f"tidelog: compiled: yes ({len(self.extensions)} modules)")

    def compile_all(self):
        from Cython.Build import cythonize
        from Cython.Build.Dependencies import create_dependency_tree

        self.parallel = self.parallel or os.cpu_count()
        written = cythonize(
            self.extensions,
            build_dir="build/sanitize/cython" if SANITIZED else "build/cython",
            compiler_directives={**DIRECTIVES, **CHECKS} if SANITIZED else DIRECTIVES,
            include_path=["src"],
            cache="CYTHON_CACHE_DIR" in os.environ,  # Cython uses what it wrote for equal files before
            nthreads=self.parallel,
            quiet=True,
        )
        tree = create_dependency_tree()  # the one that cythonize made
        sources = {extension.name: extension.sources for extension in written}
        for extension in self.extensions:
            read = [*tree.all_dependencies(extension.sources[0]), *Path(HEADERS).glob("*.h")]
            extension.depends = sorted({os.path.relpath(os.path.realpath(path)) for path in read})
            extension.sources = sources[extension.name]
        super().run()
        if self.inplace or self.editable_mode:
            self.write_stamp()

    def write_stamp(self):
        """Write the digests of the files that each module was built from to STAMP."""
        digests = {
            extension.name: {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in extension.depends}
            for extension in self.extensions
        }
        STAMP.write_text(json.dumps(digests, indent=1))

    def leave_out_all(self):
        """Make the package one of plain Python: remove modules that an earlier build compiled, and mark a wheel as
        pure.
        """
        for extension in self.extensions:
            for path in (self.get_ext_fullpath(extension.name), self.get_ext_filename(extension.name)):
                for folder in ("", "src", self.build_lib):
                    Path(folder, path).unlink(missing_ok=True)
        self.extensions = self.distribution.ext_modules = []
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True


def extension(path):
    """The extension that is compiled from a module's source."""
    source = f"src/tidelog/{path}"
    name = source.removeprefix("src/").removesuffix(".py").replace("/", ".")
    if SANITIZED:
        compiled, linked = ["-O1", *SANITIZERS], SANITIZERS
    else:
        speed = "-Os" if path in SMALL else "-O1" if path in CALLS else "-O3"
        compiled, linked = ["-g0"] if "CFLAGS" in os.environ else [speed, "-g0"], []
    return Extension(name, [source], include_dirs=[HEADERS], extra_compile_args=compiled, extra_link_args=linked)


setup(
    ext_modules=[extension(path) for path in SANITIZED or Path("extensions.txt").read_text().split()],
    cmdclass={"build_ext": BuildExtensions},
)
