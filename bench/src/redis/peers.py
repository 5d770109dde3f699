"""Jobs by pottery and walrus. A question a line on standard input, an answer a line on standard output."""

import sys
import time
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")

MEMBERS, COUNTED = 100, 10_000
port = int(sys.argv[1])


def member(at):
    return f"member:{at % MEMBERS:03}"


def pottery():
    import redis
    from pottery import HyperLogLog, NextID, RedisSet, Redlock

    client = redis.Redis(port=port)
    lock = Redlock(key="pottery-lock", masters={client}, auto_release_time=3600)
    ids = NextID(key="pottery-ids", masters={client})
    added = RedisSet(redis=client, key="pottery-added")
    read = RedisSet({member(at) for at in range(MEMBERS)}, redis=client, key="pottery-read")
    unique, counted = HyperLogLog(redis=client, key="pottery-unique"), HyperLogLog(redis=client, key="pottery-counted")
    counted.update({str(at) for at in range(COUNTED)})

    def cycle(_):
        assert lock.acquire()
        lock.release()

    return {
        "lock": cycle,
        "counter": lambda _: next(ids),
        "set_add": lambda at: added.add(member(at)),
        "set_read": lambda _: len(read.to_set()),
        "unique_add": lambda at: unique.add(str(at)),
        "unique_count": lambda _: len(counted),
    }


def walrus():
    from walrus import Database

    db = Database(port=port)
    lock = db.lock("walrus-lock", ttl=3_600_000)
    counter = db.counter("walrus-counter")
    added, read = db.Set("walrus-added"), db.Set("walrus-read")
    read.add(*[member(at) for at in range(MEMBERS)])
    unique, counted = db.HyperLogLog("walrus-unique"), db.HyperLogLog("walrus-counted")
    counted.add(*[str(at) for at in range(COUNTED)])

    def cycle(_):
        assert lock.acquire()
        assert lock.release()

    return {
        "lock": cycle,
        "counter": lambda _: counter.incr(),
        "set_add": lambda at: added.add(member(at)),
        "set_read": lambda _: len(read.members()),
        "unique_add": lambda at: unique.add(str(at)),
        "unique_count": lambda _: len(counted),
    }


LIBRARIES = {}
said = [f"Python {sys.version.split()[0]}"]
for make in (pottery, walrus):
    name = make.__name__
    try:
        LIBRARIES[name] = make()
        said.append(f"{name} {version(name)}")
    except Exception as error:
        said.append(f"{name} does not work here ({type(error).__name__}: {error})")
said.append(f"redis-py {version('redis')}")


def answer(words):
    if words[0] == "versions":
        return ", ".join(said).replace("\n", " ")
    do = LIBRARIES.get(words[1], {}).get(words[2])
    if words[0] == "can":
        if do is None:
            return "no"
        do(0)
        return "yes"
    end, ops, start = time.perf_counter() + float(words[3]), 0, time.perf_counter()
    while time.perf_counter() < end:
        do(ops)
        ops += 1
    return 1e6 * (time.perf_counter() - start) / ops


for line in sys.stdin:
    try:
        print("ok", answer(line.split()), flush=True)
    except Exception as error:
        print("failed", type(error).__name__, str(error).replace("\n", " "), flush=True)
