"""Walk what was handed in: a folder, a zip or a single file, with zips inside, as (place, bytes or reason).

Read only: links are not followed, nothing is extracted, written or run, and every size has a limit.
"""
import io
import os
import re
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

MB = 1_000_000
LARGEST_FILE = 100 * MB  # a notebook with long outputs; more is refused
LARGEST_ARCHIVE = 300 * MB  # unpacked
LARGEST_EXPORT = 20_000 * MB  # unpacked, where the given path itself is a zip: a whole class
MOST_FILES = 50_000
MOST_RATIO = 120  # unpacked to packed, for archives that unpack to more than LARGEST_FILE; an export: 5 times that
DEEPEST_ZIP = 3  # a zip around an export that holds learners' zips
DEEPEST_FOLDER = 12

_JUNK = re.compile(r"^(\.ipynb_checkpoints|__MACOSX|__pycache__|\.git|\._.*|\.DS_Store|Thumbs\.db|desktop\.ini)$", re.I)
_WANTED = re.compile(r"(\.(ipynb|py|ipy|json|txt|zip|yml)|(^|/)[^.]+|\.ipynb[^/]*)$", re.I)


@dataclass(frozen=True)
class Entry:
    """A file: `parts` of its place, zips counting as folders; its bytes (None where of no interest), or a reason."""

    parts: tuple
    data: bytes = None
    problem: str = ""


def entries(path):
    """Yield an Entry for every file below `path`, in the order of the names. Raises no error of a file's making."""
    path = Path(path)
    if path.is_dir():
        yield from _folder(path, (), [0])
    else:
        yield from _file(path, (path.name,), root=True)


def _folder(folder, parts, count):
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield Entry(parts, problem=_cannot(error))
        return
    for entry in found:
        place = (*parts, _name(entry.name))
        count[0] += 1
        if _JUNK.match(entry.name):
            continue
        if count[0] > MOST_FILES or len(place) > DEEPEST_FOLDER:
            yield Entry(place, problem="文件太多或文件夹太深 · too many files, or folders too deep")
            return
        if entry.is_symlink():
            yield Entry(place, problem="这是符号链接，没有读取 · a symbolic link: it was not followed")
        elif entry.is_dir(follow_symlinks=False):
            yield from _folder(entry.path, place, count)
        else:
            yield from _file(entry.path, place)


def _file(path, place, root=False):
    if not _WANTED.search(place[-1]) and not root:
        yield Entry(place)
        return
    try:
        # Opened without waiting (a fifo would block) or following; then asked what it is: no race in between.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | _flags(root))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                yield Entry(place, problem="不是普通文件，没有读取 · a pipe or device, not a file: it was not read")
            elif _is_zip(file.read(4)):
                yield from _zip(file, status.st_size, () if root else place, 1, root)
            elif status.st_size > LARGEST_FILE:
                yield Entry(place, problem=_too_large(LARGEST_FILE))
            else:
                file.seek(0)
                yield Entry(place, file.read(LARGEST_FILE))
    except OSError as error:
        yield Entry(place, problem=_cannot(error))


def _flags(root):
    return os.O_NONBLOCK | (0 if root else os.O_NOFOLLOW)


def _zip(file, packed, place, depth, root=False):
    if depth > DEEPEST_ZIP:
        yield Entry(place, problem="zip 套了太多层 · zips inside zips inside zips: hand in one zip")
        return
    try:
        with zipfile.ZipFile(file) as archive:
            yield from _archive(archive, packed, place, depth, root)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError, NotImplementedError, MemoryError) as error:
        yield Entry(place, problem=f"zip 打不开 · the zip cannot be opened: {type(error).__name__}")


def _archive(archive, packed, place, depth, root):
    infos = archive.infolist()
    total = sum(info.file_size for info in infos)
    most, ratio = (LARGEST_EXPORT, 5 * MOST_RATIO) if root else (LARGEST_ARCHIVE, MOST_RATIO)
    if len(infos) > MOST_FILES or total > most or total > max(LARGEST_FILE, ratio * packed):
        size = f"{len(infos):,} files, {total / MB:,.0f} MB"
        yield Entry(place, problem=f"zip 解开后太大，没有解开 · the zip unpacks to too much ({size}): left packed")
        return
    for info in infos:
        name = _zip_name(info)
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if info.is_dir() or not parts or any(_JUNK.match(part) for part in parts):
            continue
        inside = (*place, *(_name(part) for part in parts if part != ".."))
        mode = info.external_attr >> 16
        if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name):
            yield Entry(inside, problem="路径指向 zip 外面，没有读取 · a path out of the zip: it was not read")
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield Entry(inside, problem="zip 里的链接或设备，没有读取 · a link or device in the zip: it was not read")
        elif len(inside) > DEEPEST_FOLDER:
            yield Entry(inside[:DEEPEST_FOLDER], problem="zip 里的文件夹太深 · folders too deep in the zip")
        elif not _WANTED.search(parts[-1]):
            yield Entry(inside)
        else:
            yield from _member(archive, info, inside, depth)


def _member(archive, info, place, depth):
    try:
        with archive.open(info) as file:
            data = file.read(LARGEST_FILE + 1)  # the size that the zip states may be a lie
    except Exception as error:  # encrypted, damaged, or packed in a way that zipfile does not know
        what = "有密码 · it has a password" if info.flag_bits & 1 else f"损坏 · damaged: {type(error).__name__}"
        yield Entry(place, problem=f"zip 里的文件读不出来 · a file in the zip cannot be read: {what}")
        return
    if len(data) > LARGEST_FILE:
        yield Entry(place, problem=_too_large(LARGEST_FILE))
    elif _is_zip(data):
        yield from _zip(io.BytesIO(data), len(data), place, depth + 1)
    else:
        yield Entry(place, data)


def _zip_name(info):
    """The name in a zip with `/` between folders; one that is not marked as UTF-8 is UTF-8 or GBK all the same."""
    name = info.filename
    if not info.flag_bits & 0x800:
        raw = info.orig_filename.encode("cp437", "replace")
        for encoding in ("utf-8", "gb18030"):
            try:
                name = raw.decode(encoding)
                break
            except UnicodeDecodeError:
                continue
    return name.split("\0")[0].replace("\\", "/")


def _name(name):
    """A file name that can be printed: bytes that are no UTF-8 are read as GBK."""
    return os.fsencode(name).decode("gb18030", "replace") if re.search("[\udc80-\udcff]", name) else name


def _is_zip(data):
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def _too_large(limit):
    return f"文件太大，没有读取 · the file is too large (limit {limit / MB:,.0f} MB): it was not read"


def _cannot(error):
    return f"读不出来 · it cannot be read: {error.strerror or type(error).__name__}"
