#!/usr/bin/env python3
"""Larder's data from another language: reads and writes what `docs/layouts.md` describes, in a memcached server, by the standard library alone.

    layouts.py HOST:PORT STRUCTURE VERB NAME [ARGUMENT...]

It prints JSON; a byte is the character of its number. Written from `docs/layouts.md` and from nothing else; a test has Larder read what this writes, and the other way round. It takes no
care of what a real client must: it compacts nothing, looks nothing up after a lost reply, and gives up where another writer is faster a hundred times.
"""

import json
import os
import random
import socket
import sys
import time
from collections import namedtuple

from xxh3 import xxh3_64, xxh3_128

KINDS = {  # name: (kind, role, version of the layout)
    "lock": (1, None, 1), "counter": (2, "s", 1), "fast-counter": (3, "n", 1), "set": (4, "p", 1), "visitors": (5, "v", 1),
    "log": (6, "e", 1), "array": (7, "a", 1), "table": (8, "t", 1), "queue": (9, "q", 5), "stack": (10, "k", 5), "cache": (11, "c", 1),
}
THIRTY_DAYS_S = 30 * 24 * 3600
TRIES = 100
Item = namedtuple("Item", "value flags token life_s")


class Gone(Exception):
    """Data that must be there are not, or are other data."""


# Numbers

def u16(number):
    return number.to_bytes(2, "little")


def u32(number):
    return number.to_bytes(4, "little")


def u64(number):
    return number.to_bytes(8, "little")


def number(data):
    return int.from_bytes(data, "little")


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Reader:
    """Takes bytes from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def __bool__(self):
        return self.at < len(self.data)

    def take(self, count):
        if self.at + count > len(self.data):
            raise Gone("the value ends in the middle")
        self.at += count
        return self.data[self.at - count:self.at]

    def u16(self):
        return number(self.take(2))

    def u32(self):
        return number(self.take(4))

    def u64(self):
        return number(self.take(8))

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def rest(self):
        return self.take(len(self.data) - self.at)


def draw():
    return random.SystemRandom().randrange(1, 1 << 64)


def place(hash64, shards):
    """The high half of the product of a hash and the number of shards."""
    return hash64 * shards >> 64


# The server

class Server:
    """memcached's text protocol: `mg` for what `get` does not tell, `md` to delete by token."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.wire = socket.create_connection((host, int(port)), timeout=10)
        self.lines = self.wire.makefile("rb")

    def ask(self, head, value=None):
        self.wire.sendall(head.encode() + b"\r\n" + (b"" if value is None else value + b"\r\n"))
        return self.lines.readline().decode("latin-1").rstrip("\r\n")

    def get(self, key):
        head = self.ask(f"mg {key} v f c t").split()
        if head[0] == "EN":
            return None
        if head[0] != "VA":
            raise OSError(" ".join(head))
        value = self.lines.read(int(head[1]) + 2)[:-2]
        told = {flag[0]: int(flag[1:]) for flag in head[2:]}
        return Item(value, told["f"], told["c"], told["t"])

    def write(self, head, value):
        answer = self.ask(head, value)
        if answer not in ("STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"):
            raise OSError(f"{head}: {answer}")
        return answer == "STORED"

    def add(self, key, value, flags=0, life_s=0):
        return self.write(f"add {key} {flags} {until(life_s)} {len(value)}", value)

    def append(self, key, value):
        return self.write(f"append {key} 0 0 {len(value)}", value)

    def cas(self, key, value, token, flags=0, life_s=0):
        return self.write(f"cas {key} {flags} {until(life_s)} {len(value)} {token}", value)

    def incr(self, key, by, verb="incr"):
        answer = self.ask(f"{verb} {key} {by}")
        return None if answer == "NOT_FOUND" else int(answer)

    def delete(self, key, token=None):
        return self.ask(f"md {key}" + ("" if token is None else f" C{token}")).startswith("HD")


def until(life_s):
    """Lives of more than thirty days are told as their end."""
    return life_s if life_s <= THIRTY_DAYS_S else int(time.time()) + life_s


# Keys, and the manifest

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def letters(hash128):
    """The upper 84 bits, six at a time."""
    return "".join(LETTERS[hash128 >> 122 - 6 * n & 63] for n in range(14))


def quoted(name):
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in name)


def manifest_key(name):
    return f"L.{quoted(name)}.m"


Manifest = namedtuple("Manifest", "kind shards generation copies params")


class Structure:
    """A structure that is there: its manifest, and the keys of its data."""

    def __init__(self, server, what, name):
        self.server, self.name, self.role = server, name, KINDS[what][1]
        item = server.get(manifest_key(name))
        if item is None:
            raise Gone("there is none of this name")
        reader = Reader(item.value)
        if reader.take(4) != b"LRD\x01":
            raise Gone("this is no manifest")
        kind, version = reader.take(2)
        self.shards, self.generation, self.copies = reader.u16(), reader.u64(), reader.take(1)[0]
        self.params = reader.rest()
        if (kind, version) != (KINDS[what][0], KINDS[what][2]):
            raise Gone(f"the name holds kind {kind}, layout {version}")

    def key(self, index):
        return f"L.{quoted(self.name)}.{self.role}.{self.generation:016x}.{index}"

    def item(self, index):
        found = self.server.get(self.key(index))
        if found is None:
            raise Gone(f"{self.key(index)} is lost")
        return found

    def retry(self, index, change):
        """Writes an item under its token until nobody else is faster; `change` makes the new value of the old one."""
        for _ in range(TRIES):
            item = self.item(index)
            value = change(item.value)
            if value is None or self.server.cas(self.key(index), value, item.token, item.flags):
                return
        raise OSError("others are faster")

    def append(self, index, frame):
        if not self.server.append(self.key(index), frame):
            raise Gone(f"{self.key(index)} is lost")


def create(server, what, name, params, data, shards):
    """Data first, then the manifest. `data` is a function of the generation that tells index and value of each data key."""
    kind, role, version = KINDS[what]
    generation = draw()
    for index, value in data(generation):
        assert server.add(f"L.{quoted(name)}.{role}.{generation:016x}.{index}", value)
    manifest = b"LRD\x01" + bytes([kind, version]) + u16(shards) + u64(generation) + b"\x01" + params
    if not server.add(manifest_key(name), manifest):
        raise Gone("the name is taken")


# Values that grow: what sets, arrays, ledgers, tables and queues have in common

Frame = namedtuple("Frame", "writer sequence operations")  # operations: (is_removal, bytes)


def low_half(hash64):
    return u32(hash64 & 0xFFFFFFFF)


def empty_value(generation, shard):
    snapshot = varint(0)
    head = b"LRA\x01" + u64(generation) + u16(shard) + u32(0) + u32(len(snapshot))
    return head + low_half(xxh3_64(snapshot, xxh3_64(head, generation))) + snapshot


def frame(seed, writer, sequence, operations):
    body = u64(writer) + varint(sequence)
    for is_removal, element in operations:
        body += varint(2 * len(element) + is_removal) + element
    return varint(len(body)) + low_half(xxh3_64(body, seed)) + body


def frames(reader, seed):
    while reader:
        size = reader.varint()
        check, body = reader.take(4), reader.take(size)
        if low_half(xxh3_64(body, seed)) != check:
            raise Gone("a frame is damaged")
        inner = Reader(body)
        writer, sequence, operations = inner.u64(), inner.varint(), []
        while inner:
            length = inner.varint()
            operations.append((bool(length & 1), inner.take(length >> 1)))
        yield Frame(writer, sequence, operations)


def operations(value, generation, shard):
    """The members of the snapshot, and the frames behind it that count: each writer's, by rising sequences."""
    reader = Reader(value)
    head = reader.take(22)
    if head[:4] != b"LRA\x01" or number(head[4:12]) != generation or number(head[12:14]) != shard:
        raise Gone("this is another value")
    check, snapshot = reader.take(4), reader.take(number(head[18:22]))
    if low_half(xxh3_64(snapshot, xxh3_64(head, generation))) != check:
        raise Gone("a snapshot is damaged")
    inner = Reader(snapshot)
    last = {}
    for _ in range(inner.varint()):
        writer, sequence = inner.u64(), inner.varint()
        inner.take(4)
        last[writer] = sequence
    members = []
    while inner:
        members.append(inner.take(inner.varint()))
    counted = []
    for found in frames(reader, generation ^ shard):
        if found.sequence > last.get(found.writer, 0):
            last[found.writer] = found.sequence
            counted.append(found)
    return members, counted


def distinct(value, generation, shard):
    """What a value says of members that are there once."""
    members, counted = operations(value, generation, shard)
    found = dict.fromkeys(members)
    for of_frame in counted:
        for is_removal, member in of_frame.operations:
            found.pop(member, None) if is_removal else found.setdefault(member)
    return list(found)


# Counters

class Slot:
    def __init__(self, value):
        reader = Reader(value)
        if reader.take(1) != b"\x01":
            raise Gone("this is no slot")
        self.sum = int.from_bytes(reader.take(16), "little", signed=True)
        self.sequence, self.owner, self.beat = reader.u64(), reader.u64(), reader.u64()
        self.marks = [(reader.u64(), reader.u64()) for _ in range(reader.take(1)[0])]

    def encode(self):
        head = b"\x01" + self.sum.to_bytes(16, "little", signed=True) + u64(self.sequence) + u64(self.owner) + u64(self.beat)
        return head + bytes([len(self.marks)]) + b"".join(u64(writer) + u64(count) for writer, count in self.marks)


def counter_create(server, name, slots="4"):
    return create(server, "counter", name, b"", lambda _: ((n, b"\x01" + bytes(41)) for n in range(int(slots))), int(slots))


def counter_get(server, name):
    counter = Structure(server, "counter", name)
    return sum(Slot(counter.item(n).value).sum for n in range(counter.shards))


def counter_add(server, name, by):
    counter, writer = Structure(server, "counter", name), draw()

    def change(value):
        slot = Slot(value)
        slot.sum += int(by)
        slot.sequence, slot.owner, slot.beat = slot.sequence + 1, writer, int(time.time() * 1000)
        slot.marks = (slot.marks + [(writer, 1)])[-8:]
        return slot.encode()

    counter.retry(random.randrange(counter.shards), change)
    return counter_get(server, name)


FAST_ZERO = 1 << 62


def fast_create(server, name):
    return create(server, "fast-counter", name, b"", lambda _: [(0, str(FAST_ZERO).encode())], 1)


def fast_get(server, name):
    return int(Structure(server, "fast-counter", name).item(0).value.rstrip()) - FAST_ZERO


def fast_add(server, name, by):
    counter = Structure(server, "fast-counter", name)
    found = server.incr(counter.key(0), abs(int(by)), "decr" if int(by) < 0 else "incr")
    if found is None:
        raise Gone("the counter is lost")
    return found - FAST_ZERO


# Locks

LOCK_HEAD = b"LRD\x01" + bytes([1, 1]) + u16(0)


def lock_read(server, name):
    item = server.get(manifest_key(name))
    if item is None:
        return None, None, None
    reader = Reader(item.value)
    if reader.take(8) != LOCK_HEAD:
        raise Gone("this is no lock")
    head = item.value[:17]
    reader.take(9)
    held, token, owner, beat = reader.take(1)[0], reader.u64(), reader.u64(), reader.u64()
    lease_ms, since, label = reader.u32(), reader.u64(), reader.take(reader.take(1)[0])
    record = {"held": held == 1, "token": token, "owner": owner, "beat": beat, "lease_ms": lease_ms, "since": since, "label": label}
    return item, head, record


def lock_bytes(record):
    return (bytes([record["held"]]) + u64(record["token"]) + u64(record["owner"]) + u64(record["beat"]) + u32(record["lease_ms"])
            + u64(record["since"]) + bytes([len(record["label"])]) + record["label"])


def lock_status(server, name):
    item, _, record = lock_read(server, name)
    if record is None:
        return None
    age_ms = (THIRTY_DAYS_S - item.life_s) * 1000
    return {"held": record["held"] and age_ms <= record["lease_ms"], "token": record["token"], "label": record["label"].decode("latin-1")}


def lock_take(server, name, lease_ms, label=b""):
    """The token, or nothing if somebody holds it."""
    item, head, record = lock_read(server, name)
    now_us = int(time.time() * 1_000_000)
    new = {"held": True, "owner": draw(), "beat": 1, "lease_ms": int(lease_ms), "since": now_us, "label": label}
    if record is None:
        new["token"] = now_us
        head = LOCK_HEAD + u64(draw()) + b"\x01"
        return new["token"] if server.add(manifest_key(name), head + lock_bytes(new), life_s=THIRTY_DAYS_S) else None
    if lock_status(server, name)["held"]:
        return None
    new["token"] = max(record["token"] + 1, now_us)
    is_mine = server.cas(manifest_key(name), head + lock_bytes(new), item.token, life_s=THIRTY_DAYS_S)
    return new["token"] if is_mine else None


def lock_free(server, name, token):
    item, head, record = lock_read(server, name)
    if record is None or not record["held"] or record["token"] != int(token):
        return False
    record.update(held=False, beat=record["beat"] + 1)
    return server.cas(manifest_key(name), head + lock_bytes(record), item.token, life_s=THIRTY_DAYS_S)


# Sets

def appended(generation, shards):
    return ((n, empty_value(generation, n)) for n in range(shards))


def set_create(server, name, shards="1"):
    return create(server, "set", name, b"\x01", lambda generation: appended(generation, int(shards)), int(shards))


def set_members(server, name):
    found = Structure(server, "set", name)
    return sorted(member for n in range(found.shards) for member in distinct(found.item(n).value, found.generation, n))


def set_change(server, name, changes):
    found, writer, parts = Structure(server, "set", name), draw(), {}
    for change in changes:
        parts.setdefault(place(xxh3_64(change[1]), found.shards), []).append(change)
    for shard, part in parts.items():
        found.append(shard, frame(found.generation ^ shard, writer, 1, part))


def set_add(server, name, *members):
    return set_change(server, name, [(False, member) for member in members])


def set_remove(server, name, *members):
    return set_change(server, name, [(True, member) for member in members])


# Arrays

def array_create(server, name, shards="1"):
    shards = int(shards)

    def data(generation):
        yield from appended(generation, shards)
        if shards > 1:
            yield "commits", commits_bytes(generation, 0, 0, generation, [])

    return create(server, "array", name, b"\x01", data, shards)


def commits_bytes(generation, base, token, chain, numbers):
    body = varint(base) + varint(token) + u64(chain) + b"".join(u64(change) + bits for change, bits in numbers)
    return b"LRC\x02" + u64(generation) + low_half(xxh3_64(body, generation)) + body


def commits(found):
    """The base, the token, the chain of the base, and of each number above it the change that has it, and its bits."""
    value = found.item("commits").value
    if value[:4] != b"LRC\x02" or value[12:16] != low_half(xxh3_64(value[16:], found.generation)):
        raise Gone("the commits are damaged")
    reader = Reader(value[16:])
    base, token, chain, numbers = reader.varint(), reader.varint(), reader.u64(), []
    while reader:
        numbers.append((reader.u64(), reader.take((found.shards + 7) // 8)))
    return base, token, chain, numbers


def stored(element):
    return b"\0" + element if element[:1] == b"\0" else element


def array_shard(value, found, shard, won, chains):
    """The elements of a shard, in order. `won` tells which change has a number, `chains` what was won up to it."""
    members, counted = operations(value, found.generation, shard)
    elements, mark, token = [], 0, 0

    def apply(is_removal, raw):
        nonlocal elements, mark, token
        if raw[:1] != b"\0" or raw[:2] == b"\0\0":
            element = raw[1:] if raw[:1] == b"\0" else raw
            elements = [other for other in elements if other != element] if is_removal else elements + [element]
            return
        reader = Reader(raw[2:])
        if raw[1] == 2:
            mark, seen = reader.varint(), reader.varint()
            token = max(token, seen)
            if mark and reader.u64() != chains.get(mark):
                raise Gone("a shard, or the commits, were set back")
            return
        which, change = reader.varint(), reader.u64()
        if raw[1] == 1 and (which <= mark or won.get(which) != change):
            return
        if raw[1] == 3:
            if which < token:
                return
            token = which
        while reader:
            length = reader.varint()
            apply(bool(length & 1), reader.take(length >> 1))

    for member in members:
        apply(False, member)
    for of_frame in counted:
        for is_removal, raw in of_frame.operations:
            apply(is_removal, raw)
    return elements


def array_get(server, name):
    """One list of each shard; in the order of their elements."""
    found, won, chains = Structure(server, "array", name), {}, {}
    if found.shards > 1:
        base, _, chain, numbers = commits(found)
        won = {base + 1 + n: change for n, (change, _) in enumerate(numbers) if change}
        chains[base] = chain
        for n, (change, _) in enumerate(numbers):
            chains[base + 1 + n] = chain = xxh3_64(u64(change), chain)
    return [array_shard(found.item(n).value, found, n, won, chains) for n in range(found.shards)]


def array_parts(found, delete, add):
    parts = {}
    for is_removal, elements in ((True, delete), (False, add)):
        for element in elements:
            parts.setdefault(place(xxh3_64(element), found.shards), []).append((is_removal, stored(element)))
    return parts


def array_push(server, name, *elements):
    found, writer = Structure(server, "array", name), draw()
    for shard, part in array_parts(found, [], elements).items():
        found.append(shard, frame(found.generation ^ shard, writer, 1, part))


def array_change(server, name, delete, add):
    """Deletes an element and adds another, at once for every reader."""
    found, writer, sequence = Structure(server, "array", name), draw(), 0
    parts = array_parts(found, [delete], [add])
    if len(parts) == 1:
        (shard, part), = parts.items()
        return found.append(shard, frame(found.generation ^ shard, writer, 1, part))
    bits = bytearray((found.shards + 7) // 8)
    for shard in parts:
        bits[shard // 8] |= 1 << shard % 8
    for _ in range(TRIES):
        base, _, _, numbers = commits(found)
        which, change, sequence = base + len(numbers) + 1, draw(), sequence + 1
        for shard, part in parts.items():
            encoded = b"".join(varint(2 * len(raw) + is_removal) + raw for is_removal, raw in part)
            element = b"\0\x01" + varint(which) + u64(change) + encoded
            found.append(shard, frame(found.generation ^ shard, writer, sequence, [(False, element)]))
        item = found.item("commits")
        base, token, chain, numbers = commits(found)
        if base + len(numbers) + 1 == which:
            value = commits_bytes(found.generation, base, token, chain, numbers + [(change, bytes(bits))])
            if server.cas(found.key("commits"), value, item.token):
                return None
    raise OSError("others are faster")


# The ledger: which pieces a log, or visitors, have made

Piece = namedtuple("Piece", "number part incarnation")


def ledger(found):
    entries = distinct(found.item(0).value, found.generation, 0)
    return sorted(Piece(number(entry[:8]), number(entry[8:10]), number(entry[10:])) for entry in entries)


def register(found, piece):
    entry = u64(piece.number) + u16(piece.part) + u64(piece.incarnation)
    found.append(0, frame(found.generation, draw(), 1, [(False, entry)]))


# Visitors

def visitors_create(server, name, period_ms, shards="1"):
    params = u64(int(period_ms)) + u16(int(shards)) + b"\x01"
    return create(server, "visitors", name, params, lambda generation: appended(generation, 1), 1)


class Window:
    def __init__(self, server, name, time_ms):
        self.found = Structure(server, "visitors", name)
        reader = Reader(self.found.params)
        self.period_ms, self.shards = reader.u64(), reader.u16()
        self.number = int(time_ms) // self.period_ms

    def life_s(self):
        end_ms = self.number * self.period_ms + 3 * self.period_ms + 305_000
        return max(1, end_ms // 1000 - int(time.time()))

    def index(self, part):
        return f"w{self.number}" + (f"-{part - 1}" if part else "")

    def parts(self):
        """Of each part that is there its incarnation, and what it counts."""
        parts = {}
        counter = self.found.server.get(self.found.key(self.index(0)))
        if counter:
            parts[0] = divmod(int(counter.value.rstrip()), 1 << 40)
        for part in range(1, self.shards + 1):
            item = self.found.server.get(self.found.key(self.index(part)))
            if item:
                reader = Reader(item.value)
                if reader.take(4) != b"LRV\x01":
                    raise Gone("this is no shard of visitors")
                incarnation = reader.u64()
                parts[part] = incarnation, len({reader.take(8) for _ in range((len(item.value) - 12) // 8)})
        return parts

    def listed(self):
        return {piece.part: piece.incarnation for piece in ledger(self.found) if piece.number == self.number}

    def settle(self, part):
        """A hit is acknowledged once its part is listed."""
        if part not in self.listed():
            register(self.found, Piece(self.number, part, self.parts()[part][0]))


def visitors_get(server, name, time_ms):
    window = Window(server, name, time_ms)
    parts = window.parts()
    for part, incarnation in window.listed().items():
        if parts.get(part, (None,))[0] != incarnation:
            raise Gone("the window is lost")
    return sum(count for _, count in parts.values())


def visitors_hit(server, name, time_ms):
    window = Window(server, name, time_ms)
    key = window.found.key(window.index(0))
    if server.incr(key, 1) is None:
        incarnation = random.randrange(1, 1 << 22)
        server.add(key, str(incarnation << 40).encode(), life_s=window.life_s())
        assert server.incr(key, 1) is not None
    window.settle(0)


def visitors_visit(server, name, time_ms, visitor):
    window = Window(server, name, time_ms)
    hashed = xxh3_64(visitor, window.found.generation)
    part = 1 + place(hashed, window.shards)
    key = window.found.key(window.index(part))
    if not server.append(key, u64(hashed)):
        server.add(key, b"LRV\x01" + u64(draw()), life_s=window.life_s())
        assert server.append(key, u64(hashed))
    window.settle(part)


# Logs

PART_BYTES = 64 * 1024


def log_create(server, name, chunk_ms, retention_ms):
    params = u64(int(chunk_ms)) + u64(int(retention_ms))
    return create(server, "log", name, params, lambda generation: appended(generation, 1), 1)


class Log:
    def __init__(self, server, name):
        self.found = Structure(server, "log", name)
        reader = Reader(self.found.params)
        self.chunk_ms, self.retention_ms = reader.u64(), reader.u64()

    def key(self, chunk, part):
        return self.found.key(f"{chunk:x}-{part:x}")

    def header(self, chunk, part, incarnation):
        head = b"LRE\x01" + u64(self.found.generation) + u64(chunk) + u16(part) + u64(incarnation)
        return head + low_half(xxh3_64(head, self.found.generation))

    def seed(self, chunk, part):
        return xxh3_64(u64(chunk) + u16(part), self.found.generation)


def log_put(server, name, time_ms, event):
    log = Log(server, name)
    chunk, offset_ms = divmod(int(time_ms), log.chunk_ms)
    operation = [(False, varint(offset_ms) + event)]
    part = max((piece.part for piece in ledger(log.found) if piece.number == chunk), default=0)
    while True:
        key, item = log.key(chunk, part), server.get(log.key(chunk, part))
        if item is None:
            end_ms = (chunk + 1) * log.chunk_ms + log.retention_ms + 300_000
            server.add(key, log.header(chunk, part, draw()), life_s=max(1, end_ms // 1000 + 1 - int(time.time())))
        elif len(item.value) < PART_BYTES:
            break
        else:
            part += 1
    if not server.append(key, frame(log.seed(chunk, part), draw(), 1, operation)):
        raise Gone("the part is lost")
    incarnation = number(item.value[22:30])
    if Piece(chunk, part, incarnation) not in ledger(log.found):
        register(log.found, Piece(chunk, part, incarnation))


def log_fetch(server, name, first_ms, last_ms):
    """Events, each with its time, and the parts that are gaps."""
    log, events, gaps, met = Log(server, name), [], [], set()
    first_ms = max(int(first_ms), int(time.time() * 1000) - log.retention_ms)
    pieces = [piece for piece in ledger(log.found) if first_ms // log.chunk_ms <= piece.number <= int(last_ms) // log.chunk_ms]
    values = {(piece.number, piece.part): server.get(log.key(piece.number, piece.part)) for piece in pieces}
    for (chunk, part), item in values.items():
        incarnation = number(item.value[22:30]) if item else None
        gaps += [[chunk, part] for piece in pieces if piece[:2] == (chunk, part) and piece.incarnation != incarnation]
        if item is None:
            continue
        if item.value[:34] != log.header(chunk, part, incarnation):
            raise Gone("a part's header is damaged")
        for found in frames(Reader(item.value[34:]), log.seed(chunk, part)):
            if (chunk, found.writer, found.sequence) in met:
                continue
            met.add((chunk, found.writer, found.sequence))
            for _, element in (operation for operation in found.operations if not operation[0]):
                reader = Reader(element)
                time_ms = chunk * log.chunk_ms + reader.varint()
                if first_ms <= time_ms <= int(last_ms):
                    events.append((time_ms, reader.rest()))
    return {"events": sorted(events, key=lambda event: event[0]), "gaps": gaps}


# Tables

ENTRY_SHARD = 0xFFFF


class Spot:
    """Where a key's entry stands."""

    def __init__(self, found, key):
        hashed = xxh3_128(key)
        self.index = letters(hashed)
        self.shard = place((hashed & (1 << 44) - 1) << 20, found.shards)
        self.mark = xxh3_64(key, 0x4C41524445522D74)

    def flags(self, is_listed):
        return self.mark & 0xFFFFFFFE | is_listed

    def value(self, generation, value):
        """The element that is a value."""
        return b"\x01" + u64(self.mark) + value


def table_create(server, name, shards="1"):
    return create(server, "table", name, b"\x01\x00", lambda generation: appended(generation, int(shards)), int(shards))


def entry(found, spot, key, item):
    """Incarnation and value of an entry."""
    members, counted = operations(item.value, found.generation, ENTRY_SHARD)
    elements = members + [element for of_frame in counted for _, element in of_frame.operations]
    head = next(element for element in elements if element[:1] == b"\0")
    if head[13:] != key:
        raise Gone("another key of the same hash")
    values = [element[9:] for element in elements if element[:1] == b"\x01" and number(element[1:9]) == spot.mark]
    return number(head[1:9]), values[-1]


def noted(found, shard):
    """The keys that a shard of the list names, each with its incarnation, and whether it is leaving."""
    members, counted = operations(found.item(shard).value, found.generation, shard)
    elements = members + [element for of_frame in counted for _, element in of_frame.operations]
    notes, gone = [], {number(element[1:9]) for element in elements if element[:1] == b"\x02"}
    overtaken = set()
    for element in elements:
        if element[:1] == b"\x02":
            # It takes those of its key along that were listed before it.
            at = [n for n, (_, incarnation, _) in enumerate(notes) if incarnation == number(element[1:9])]
            if at:
                key = notes[at[0]][0]
                overtaken |= {incarnation for other, incarnation, _ in notes[:at[0]] if other == key}
        else:
            notes.append((element[13:], number(element[1:9]), element[:1] == b"\x01"))
    keys = {}
    leaving = {incarnation for _, incarnation, is_leaving in notes if is_leaving}
    for key, incarnation, is_leaving in notes:
        if not is_leaving and incarnation not in gone | overtaken:
            keys[key] = incarnation, incarnation in leaving
    return keys


def note(found, shard, element):
    found.append(shard, frame(found.generation ^ shard, draw(), 1, [(False, element)]))


def table_get(server, name, key):
    found = Structure(server, "table", name)
    spot = Spot(found, key)
    item = server.get(found.key(spot.index))
    if item:
        return entry(found, spot, key, item)[1].decode("latin-1")
    incarnation, is_leaving = noted(found, spot.shard).get(key, (None, True))
    if not is_leaving:
        raise Gone("the entry is lost")
    return None


def table_keys(server, name):
    found = Structure(server, "table", name)
    every = (noted(found, shard) for shard in range(found.shards))
    return sorted(key for keys in every for key, (_, is_leaving) in keys.items() if not is_leaving)


def table_put(server, name, key, value):
    found = Structure(server, "table", name)
    if found.params[1:2] != b"\0":
        raise Gone("a table with lives: a put there is a cas")
    spot = Spot(found, key)
    at, writer, seed = found.key(spot.index), draw(), found.generation ^ ENTRY_SHARD
    element = (False, spot.value(found.generation, value))
    if not server.append(at, frame(seed, writer, 1, [element])):
        head = (False, b"\0" + u64(draw()) + u32(0) + key)
        new = empty_value(found.generation, ENTRY_SHARD) + frame(seed, writer, 1, [head, element])
        if not server.add(at, new, spot.flags(0)):
            return table_put(server, name, key, value)
    for _ in range(TRIES):
        item = server.get(at)
        if item is None or item.flags & 1:
            return None
        incarnation, _ = entry(found, spot, key, item)
        note(found, spot.shard, b"\0" + u64(incarnation) + u32(0) + key)
        server.cas(at, item.value, item.token, spot.flags(1))
    raise OSError("others are faster")


def table_remove(server, name, key):
    found = Structure(server, "table", name)
    spot = Spot(found, key)
    for _ in range(TRIES):
        item = server.get(found.key(spot.index))
        if item is None:
            return False
        incarnation, _ = entry(found, spot, key, item)
        note(found, spot.shard, b"\x01" + u64(incarnation) + u32(int(time.time())) + key)
        if server.delete(found.key(spot.index), item.token):
            note(found, spot.shard, b"\x02" + u64(incarnation))
            return True
    raise OSError("others are faster")


# Caches

class Entry:
    """What a key's item says, and how old it is by the server's clock."""

    def __init__(self, item):
        reader = Reader(item.value)
        if reader.take(4) != b"LRC\x01":
            raise Gone("this is no entry of a cache")
        self.token, self.draw, _ = item.token, reader.u64(), reader.varint()
        life_ms, fresh_ms, served_ms, lease_ms = [reader.varint() for _ in range(4)]
        self.key, self.value = reader.take(reader.varint()), reader.rest()
        age_ms = life_ms - item.life_s * 1000
        self.is_fresh = age_ms < fresh_ms
        # The server may count a second too many.
        self.is_leased = max(age_ms - 1000, 0) < lease_ms
        self.served_ms = max(served_ms - age_ms, 0)
        if not self.served_ms:
            self.value = None


def entry_bytes(draw, key, life_s, fresh_ms, lease_ms, kept):
    """`kept` is a value and how long it may be served, or none."""
    value, served_ms = kept or (b"", 0)
    numbers = (int(time.time() * 1000), life_s * 1000, fresh_ms, served_ms, lease_ms)
    return b"LRC\x01" + u64(draw) + b"".join(map(varint, numbers)) + varint(len(key)) + key + value


def whole_s(ms):
    return -(-ms // 1000)


def cache_create(server, name):
    return create(server, "cache", name, b"\x01", lambda _: (), 0)


def cache_entry(server, name, key):
    """Where the entry stands, and the entry; none if another key has it."""
    at = Structure(server, "cache", name).key(letters(xxh3_128(key)))
    item = server.get(at)
    found = Entry(item) if item else None
    return at, item, found if found and found.key == key else None


def cache_get(server, name, key):
    """What is told to who asks: `fresh`, `stale` or `none`, whether somebody makes it anew, and the value."""
    _, _, found = cache_entry(server, name, key)
    value = found.value if found else None
    return ["none" if value is None else "fresh" if found.is_fresh else "stale", bool(found and found.is_leased), value]


def cache_lease(server, name, key, lease_ms):
    """The draw of the lease to make the value; nothing if it is fresh, or somebody else's to make."""
    at, item, found = cache_entry(server, name, key)
    if found and (found.is_leased or found.value is not None and found.is_fresh):
        return None
    kept = (found.value, found.served_ms) if found and found.value is not None else None
    life_s = whole_s(max(int(lease_ms) + 1000, kept[1] if kept else 0))
    lease = draw()
    value = entry_bytes(lease, key, life_s, 0, int(lease_ms), kept)
    is_mine = server.cas(at, value, item.token, life_s=life_s) if item else server.add(at, value, life_s=life_s)
    return str(lease) if is_mine else None


def cache_finish(server, name, key, lease, value, ttl_ms, stale_ms="0"):
    """False if the lease is gone: invalidated, evicted, or another's by now."""
    at, _, found = cache_entry(server, name, key)
    if not found or found.draw != int(lease):
        return False
    served_ms = int(ttl_ms) + int(stale_ms)
    new = entry_bytes(found.draw, key, whole_s(served_ms), int(ttl_ms), 0, (value, served_ms))
    return server.cas(at, new, found.token, life_s=whole_s(served_ms))


def cache_invalidate(server, name, key):
    at, _, _ = cache_entry(server, name, key)
    return server.delete(at)


# Queues and stacks

SEGMENT_ITEMS = 1_000


def distances(frames):
    """How many frames before the last those are whose digests a print has."""
    return [1 << power for power in range(32) if 1 << power < frames]


def print_of(chain, end):
    """The print of a segment's frames, each with how many items there are up to its last and its digest, up to this item."""
    frames = next((n + 1 for n, (items, _) in enumerate(chain) if items >= end), len(chain)) if end else 0
    if not frames:
        return 0, None
    return frames, (chain[frames - 1][1], [chain[frames - 1 - before][1] & 0xFFFFFFFF for before in distances(frames)])


def take_note(reader):
    """Where a stack goes on below a segment, the ranges of ordinals that were taken of it, and their print."""
    below, end, taken = reader.varint(), 0, []
    for _ in range(reader.varint()):
        start = end + reader.varint()
        end = start + reader.varint()
        taken.append([start, end])
    frames = reader.varint()
    return below, taken, (frames, (reader.u64(), [number(reader.take(4)) for _ in distances(frames)]) if frames else None)


class State:
    """What was taken from a queue or a stack."""

    def __init__(self, value, generation):
        if value[:4] != b"LRQ\x04" or value[4:8] != low_half(xxh3_64(value[8:], generation)):
            raise Gone("the state is damaged")
        reader = Reader(value[8:])
        self.sequence, self.tail, self.incarnation = reader.varint(), reader.varint(), reader.u64()
        self.tail_lost = reader.take(1)
        self.live, self.done, *self.losses = [reader.varint() for _ in range(6)]
        self.marks = [(reader.u64(), reader.varint()) for _ in range(reader.varint())]
        self.records = []
        for _ in range(reader.varint()):
            segment, incarnation, (below, taken, told) = reader.varint(), reader.u64(), take_note(reader)
            named = reader.take(1)
            remover = named + (reader.take(8) + varint(reader.varint()) if named != b"\0" else b"")
            self.records.append([segment, incarnation, below, taken, told, remover])
        self.claims = [[reader.varint(), reader.varint(), reader.u64(), reader.varint()] for _ in range(reader.varint())]

    def written_by(self, writer):
        self.sequence += 1
        self.marks = ([(writer, 1)] + self.marks)[:16]

    def record(self, which):
        return next((record for record in self.records if record[0] == which), None)

    def encode(self, generation):
        body = varint(self.sequence) + varint(self.tail) + u64(self.incarnation) + self.tail_lost
        body += b"".join(varint(count) for count in (self.live, self.done, *self.losses))
        body += varint(len(self.marks)) + b"".join(u64(writer) + varint(last) for writer, last in self.marks)
        body += varint(len(self.records))
        for segment, incarnation, below, taken, (frames, digests), remover in self.records:
            body += varint(segment) + u64(incarnation) + varint(below) + varint(len(taken))
            end = 0
            for start, stop in taken:
                body += varint(start - end) + varint(stop - start)
                end = stop
            body += varint(frames)
            if frames:
                body += u64(digests[0]) + b"".join(u32(digest) for digest in digests[1])
            body += remover
        body += varint(len(self.claims))
        body += b"".join(varint(segment) + varint(ordinal) + u64(claim) + varint(tries) for segment, ordinal, claim, tries in self.claims)
        return b"LRQ\x04" + low_half(xxh3_64(body, generation)) + body


def line_create(server, what, name, segment_bytes="65536", bytes_max="1073741824"):
    def data(generation):
        incarnation = draw()
        yield f"s{incarnation:016x}", new_segment(what, 0, incarnation)
        body = varint(0) + varint(0) + u64(incarnation) + b"\0" + varint(1) + varint(0) * 5 + varint(0)
        body += varint(1) + varint(0) + u64(incarnation) + varint(0) * 3 + b"\0" + varint(0)
        yield 0, b"LRQ\x04" + low_half(xxh3_64(body, generation)) + body

    return create(server, what, name, u32(int(segment_bytes)) + u64(int(bytes_max)), data, 1)


def new_segment(what, which, incarnation):
    """An empty segment; a stack's notes that it lies on the one before it, if there is one."""
    empty = empty_value(incarnation, which & 0xFFFF)
    if what == "queue" or which == 0:
        return empty
    lies_on = varint(2 * which) + varint(0) * 2
    return empty + frame(incarnation ^ which & 0xFFFF, draw(), 1, [(True, lies_on)])


def segment_of(found, state, which):
    """The incarnation of a segment: as the tail, by its record, or by its link."""
    if which == state.tail:
        return state.incarnation
    record = state.record(which)
    if record and record[1]:
        return record[1]
    told = found.item(f"n{which:x}").value
    if told != link(found, which, number(told[4:])):
        raise Gone("a link is damaged")
    return number(told[4:])


def link(found, which, incarnation):
    return low_half(xxh3_64(u64(which) + u64(incarnation), found.generation)) + u64(incarnation)


def items_of(found, state, which):
    return segment(found, state, which)[0]


def segment(found, state, which):
    """The items of a segment, the chain of its frames, and a stack's notes."""
    incarnation = segment_of(found, state, which)
    _, counted = operations(found.item(f"s{incarnation:016x}").value, incarnation, which & 0xFFFF)
    items, chain, notes, digest = [], [], [], incarnation
    for of_frame in counted:
        notes += [take_note(Reader(element)) for is_removal, element in of_frame.operations if is_removal]
        added = [element for is_removal, element in of_frame.operations if not is_removal]
        if added:
            items += added
            digest = xxh3_64(u64(of_frame.writer) + u64(of_frame.sequence), digest)
            chain.append((len(items), digest))
    return items, chain, notes


def left_of(found, state, which):
    """The items of a segment that nobody has taken, each with its ordinal, and where a stack goes on below it."""
    _, _, below, taken, told, remover = state.record(which) or (which, 0, 0, [], (0, None), b"\0")
    try:
        items, chain, notes = segment(found, state, which)
    except Gone:
        # One that was taken whole, and that somebody was to remove, was removed.
        if len(taken) == 1 and taken[0][0] == 0 and remover != b"\0":
            return [], below
        raise
    gone = set()
    for _, ranges, told in [(below, taken, told)] + notes:
        if ranges and print_of(chain, ranges[-1][1]) != told:
            raise Gone("a segment was set back")
        gone.update(ordinal for start, end in ranges for ordinal in range(start, end))
    below = min([note[0] for note in notes] + ([below] if state.record(which) else []), default=0)
    return [(ordinal, item) for ordinal, item in enumerate(items) if ordinal not in gone], below


def come_back(found, state):
    """What was claimed and is to be had again, by segment and ordinal."""
    for which, ordinal, claim, _ in sorted(state.claims):
        if claim == 0 or found.server.get(found.key(f"c{claim:016x}")) is None:
            yield which, ordinal, items_of(found, state, which)[ordinal]


def queue_pending(found, state):
    """What is to be had, in order: first what was claimed and came back, then what nobody has taken."""
    yield from come_back(found, state)
    last = state.records[-1][0]
    for which in [record[0] for record in state.records] + list(range(last + 1, state.tail + 1)):
        yield from ((which, ordinal, item) for ordinal, item in left_of(found, state, which)[0])


def stack_pending(found, state):
    """The same of a stack: from the top down, and what came back in its place."""
    every, last = list(come_back(found, state)), state.records[-1][0]
    on_record = [record[0] for record in state.records] + list(range(last + 1, state.tail + 1))
    below = 0
    for which in reversed(on_record):
        left, below = left_of(found, state, which)
        every += ((which, ordinal, item) for ordinal, item in left)
    while below:
        if below & 1:
            raise Gone("a segment is lost, and what lies below it has to be looked for")
        which = (below >> 1) - 1
        left, below = left_of(found, state, which)
        every += ((which, ordinal, item) for ordinal, item in left)
    return sorted(every, reverse=True)


PENDING = {"queue": queue_pending, "stack": stack_pending}


def line_items(server, what, name):
    found = Structure(server, what, name)
    return [item for _, _, item in PENDING[what](found, State(found.item(0).value, found.generation))]


def line_push(server, what, name, *items):
    found = Structure(server, what, name)
    for _ in range(TRIES):
        item = found.item(0)
        state = State(item.value, found.generation)
        at = f"s{state.incarnation:016x}"
        if len(found.item(at).value) >= number(found.params[:4]) or len(items_of(found, state, state.tail)) >= SEGMENT_ITEMS:
            open_next(found, what, state, item.token)
        elif server.append(found.key(at), frame(state.incarnation ^ state.tail & 0xFFFF, draw(), 1, [(False, each) for each in items])):
            return None
    raise Gone("the tail is lost")


def open_next(found, what, state, token):
    """Adds a segment behind the tail, and then names it in the state; where somebody else did, that is as good."""
    which, incarnation, record = state.tail + 1, draw(), state.record(state.tail)
    assert found.server.add(found.key(f"s{incarnation:016x}"), new_segment(what, which, incarnation))
    if what == "stack":
        # Those below may stay on record: then no links and notes have to tell of them.
        state.records.append([which, incarnation, 2 * which, [], (0, None), b"\0"])
    elif not record or not record[1]:
        found.server.add(found.key(f"n{state.tail:x}"), link(found, state.tail, state.incarnation))
    state.tail, state.incarnation, state.live = which, incarnation, state.live + 1
    state.written_by(draw())
    if not found.server.cas(found.key(0), state.encode(found.generation), token):
        found.server.delete(found.key(f"s{incarnation:016x}"))


def queue_pop(server, name):
    found, writer, popped = Structure(server, "queue", name), draw(), None

    def change(value):
        nonlocal popped
        state = State(value, found.generation)
        which, ordinal, popped = next(queue_pending(found, state), (None, None, None))
        if popped is None:
            return None
        state.claims = [claim for claim in state.claims if claim[:2] != [which, ordinal]]
        record = state.record(which)
        if record is None:
            record = [which, segment_of(found, state, which), 0, [], (0, None), b"\0"]
            state.records.append(record)
        record[3] = joined(record[3] + [[ordinal, ordinal + 1]])
        record[4] = print_of(segment(found, state, which)[1], record[3][-1][1])
        record[5] = b"\0"
        state.done += 1
        state.written_by(writer)
        return state.encode(found.generation)

    found.retry(0, change)
    return None if popped is None else popped.decode("latin-1")


def joined(ranges):
    out = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1][1] = max(end, out[-1][1])
        else:
            out.append([start, end])
    return out


def of_line(what, verb):
    return lambda server, *arguments: verb(server, what, *arguments)


VERBS = {
    ("counter", "create"): counter_create, ("counter", "get"): counter_get, ("counter", "add"): counter_add,
    ("fast-counter", "create"): fast_create, ("fast-counter", "get"): fast_get, ("fast-counter", "add"): fast_add,
    ("lock", "status"): lock_status, ("lock", "take"): lock_take, ("lock", "free"): lock_free,
    ("set", "create"): set_create, ("set", "members"): set_members, ("set", "add"): set_add, ("set", "remove"): set_remove,
    ("array", "create"): array_create, ("array", "get"): array_get, ("array", "push"): array_push, ("array", "change"): array_change,
    ("visitors", "create"): visitors_create, ("visitors", "get"): visitors_get, ("visitors", "hit"): visitors_hit,
    ("visitors", "visit"): visitors_visit,
    ("log", "create"): log_create, ("log", "put"): log_put, ("log", "fetch"): log_fetch,
    ("table", "create"): table_create, ("table", "get"): table_get, ("table", "keys"): table_keys, ("table", "put"): table_put,
    ("table", "remove"): table_remove,
    ("queue", "create"): of_line("queue", line_create), ("queue", "items"): of_line("queue", line_items),
    ("queue", "push"): of_line("queue", line_push), ("queue", "pop"): queue_pop,
    ("stack", "create"): of_line("stack", line_create), ("stack", "items"): of_line("stack", line_items),
    ("stack", "push"): of_line("stack", line_push),
    ("cache", "create"): cache_create, ("cache", "get"): cache_get, ("cache", "lease"): cache_lease,
    ("cache", "finish"): cache_finish, ("cache", "invalidate"): cache_invalidate,
}


def main(address, what, verb, *arguments):
    try:
        found = VERBS[what, verb](Server(address), *(os.fsencode(argument) for argument in arguments))
    except Gone as gone:
        sys.exit(f"lost: {gone}")
    print(json.dumps(found, default=lambda data: data.decode("latin-1")))


if __name__ == "__main__":
    main(*sys.argv[1:])
