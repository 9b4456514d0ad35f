"""Fetch the browser libraries the pages use and write them under static/vendor/, with licence and checksums.

Run by hand when a version changes: `python scripts/vendor.py` fetches with `npm pack`, and with `--icons` it
only builds the icon sprite anew. What it writes is committed, so neither installing nor running needs npm.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "static" / "vendor"
TEST_VENDOR = ROOT / "tests" / "browser" / "vendor"
ICON_LIST = ROOT / "static" / "dashboard" / "icons.txt"


@dataclass(frozen=True)
class Package:
    """One npm package and the files taken from it, as {path in the package: name here}."""

    name: str
    version: str
    folder: str
    files: dict[str, str]
    home: Path = VENDOR

    @property
    def path(self) -> Path:
        return self.home / f"{self.folder}-{self.version}"


PACKAGES = (
    Package(
        "idiomorph",
        "0.8.0",
        "idiomorph",
        {"dist/idiomorph-ext.min.js": "idiomorph-ext.min.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "plotly.js-cartesian-dist-min",
        "4.1.1",
        "plotly.js-cartesian",
        {"plotly-cartesian.min.js": "plotly-cartesian.min.js", "LICENSE": "LICENSE"},
    ),
    Package(
        "bootstrap",
        "5.3.9",
        "bootstrap",
        {"dist/css/bootstrap-reboot.min.css": "bootstrap-reboot.min.css", "LICENSE": "LICENSE"},
    ),
    Package(
        "@fontsource-variable/inter",
        "5.3.0",
        "inter",
        {"files/inter-latin-wght-normal.woff2": "inter-latin-wght-normal.woff2", "LICENSE": "LICENSE"},
    ),
    # Looks over every page in the browser tests; no page loads it.
    Package(
        "axe-core", "4.14.1", "axe-core", {"axe.min.js": "axe.min.js", "LICENSE": "LICENSE"}, TEST_VENDOR
    ),
)
ICONS = Package("@tabler/icons", "3.52.0", "tabler-icons", {"LICENSE": "LICENSE"})

# A comment at the end of a file would have the browser ask for a source map that is not there.
SOURCE_MAP = re.compile(rb"\n?(//# sourceMappingURL=[^\n]*|/\*# sourceMappingURL=[^*]*\*/)\s*$")


def unpack(package: Package, folder: Path) -> Path:
    """Fetch a package with npm and unpack it; returns the folder that holds its files."""
    done = subprocess.run(
        ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    archive = folder / done.stdout.strip().splitlines()[-1]
    target = folder / package.folder
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target / "package"


def install(package: Package, source: Path) -> None:
    """Copy the wanted files of an unpacked package to its folder."""
    shutil.rmtree(package.path, ignore_errors=True)
    package.path.mkdir(parents=True)
    for inside, name in package.files.items():
        data = (source / inside).read_bytes()
        (package.path / name).write_bytes(SOURCE_MAP.sub(b"\n", data))


def wanted_icons() -> list[str]:
    lines = ICON_LIST.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def build_sprite(names: list[str], source: Path) -> str:
    """Put the outlines of the named icons into one SVG, each as a symbol."""
    symbols = []
    for name in names:
        text = (source / "icons" / "outline" / f"{name}.svg").read_text(encoding="utf-8")
        found = re.search(r"<svg[^>]*>(.*)</svg>", text, re.DOTALL)
        if found is None:
            raise SystemExit(f"{name}: not an SVG file")
        body = " ".join(line.strip() for line in found[1].splitlines() if line.strip())
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{body}</symbol>')
    return '<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n"


def write_checksums() -> None:
    """List what is vendored in SHA256SUMS, in the form `sha256sum -c` reads."""
    for home in (VENDOR, TEST_VENDOR):
        files = sorted(path for path in home.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(home)}" for path in files
        ]
        (home / "SHA256SUMS").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--icons", action="store_true", help="only build the icon sprite anew")
    only_icons = parser.parse_args(arguments).icons
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for package in () if only_icons else PACKAGES:
            install(package, unpack(package, folder))
        source = unpack(ICONS, folder)
        install(ICONS, source)
        (ICONS.path / "icons.svg").write_text(build_sprite(wanted_icons(), source), encoding="utf-8")
    write_checksums()


if __name__ == "__main__":
    main(sys.argv[1:])
