"""Debian packages with German message catalogues: which, and how they are fetched."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION_FILE = "version"
PACKAGES = tuple(
    """
    akregator anjuta-common apt aptitude-common ark audacity-data baobab bash binutils-common bison
    brasero-common calligra-data cantor cheese-common claws-mail-i18n coreutils darktable deja-dup
    dia-common digikam-data dolphin dpkg e2fsprogs-l10n eog epiphany-browser-data evince-common
    evolution-common falkon file-roller filezilla-common freeciv-data gajim gcc-12-locales
    geany-common gettext gimp-data gnome-boxes gnome-builder gnome-calendar gnome-chess
    gnome-control-center-data gnome-disk-utility gnome-initial-setup gnome-maps gnome-shell-common
    gnome-software-common gnome-system-monitor gnome-terminal-data gnucash-common gnumeric-common
    gnupg-l10n gpodder gramps grisbi-common grub-common gthumb-data gtick gwenview hexchat-common
    homebank-data hugin-data inkscape kamoso kate5-data katomic kdenlive-data kdepim-runtime kgpg
    kicad kinfocenter kleopatra kmail kmplot kmymoney-common konqueror konsole konversation-data
    korganizer kpat krita-l10n kstars-data ktorrent-data ktouch-data kwin-data libc-l10n
    libgphoto2-l10n libgtk-3-common libgtk-4-common libkf5i18n-data libosinfo-l10n
    libreoffice-l10n-de lyx-common make marble-data mc-data nano nautilus-data
    network-manager-gnome okular packagekit parley-data pidgin-data planner-data
    plasma-desktop-data plasma-workspace-data poedit-common postgresql-15 postgresql-client-15
    rhythmbox-data rocs seahorse shotwell-common simple-scan subversion sudo sylpheed-i18n
    systemsettings tar tellico-data totem-common util-linux-locales vlc-l10n wget wxmaxima xkb-data
    xournalpp
    """.split()
)


def fetch(package: str, folder: Path) -> None:
    """Put the catalogues, the copyright file and the version of `package` in `folder`/`package`."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(["apt-get", "download", package], scratch)
        (archive,) = Path(scratch).glob("*.deb")
        _run(["dpkg-deb", "-x", archive.name, "files"], scratch)
        version = _run(["dpkg-deb", "-f", archive.name, "Version"], scratch)
        files = Path(scratch, "files")
        wanted = [*files.rglob("de/**/*.mo"), *files.glob("usr/share/doc/*/copyright*")]
        for path in (path for path in wanted if path.is_file()):
            place = folder / package / path.relative_to(files)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    (folder / package / VERSION_FILE).write_text(version)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Fetch every package that is not there yet; needs Debian's apt-get, and no root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for package in PACKAGES:
        if not (folder / package / VERSION_FILE).is_file():
            fetch(package, folder)
            print(package)


if __name__ == "__main__":
    main()
