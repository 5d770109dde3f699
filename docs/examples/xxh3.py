"""XXH3 of 64 and 128 bits, for `layouts.py`, which takes the standard library alone. In a program of yours take a library: this one is slow."""

_MASK = (1 << 64) - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P1, _P2, _P3, _P4, _P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE = 64


def _u32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def _u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def _swap(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def _rotl(value, by, bits):
    return (value << by | value >> (bits - by)) & ((1 << bits) - 1)


def _fold(left, right):
    product = left * right
    return product & _MASK ^ product >> 64


def _avalanche(value):
    value = (value ^ value >> 37) * 0x165667919E3779F9 & _MASK
    return value ^ value >> 32


def _avalanche_xxh64(value):
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


def _mix16(data, at, secret_at, seed):
    low = _u64(data, at) ^ (_u64(_SECRET, secret_at) + seed & _MASK)
    high = _u64(data, at + 8) ^ (_u64(_SECRET, secret_at + 8) - seed & _MASK)
    return _fold(low, high)


def _mix32(acc, data, one, two, secret_at, seed):
    low = (acc[0] + _mix16(data, one, secret_at, seed) & _MASK) ^ (_u64(data, two) + _u64(data, two + 8) & _MASK)
    high = (acc[1] + _mix16(data, two, secret_at + 16, seed) & _MASK) ^ (_u64(data, one) + _u64(data, one + 8) & _MASK)
    return low, high


def _accumulate(acc, data, at, secret, secret_at):
    for lane in range(8):
        value = _u64(data, at + 8 * lane)
        keyed = value ^ _u64(secret, secret_at + 8 * lane)
        acc[lane ^ 1] = acc[lane ^ 1] + value & _MASK
        acc[lane] = acc[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & _MASK


def _long(data, seed):
    """The lanes of more than 240 bytes, and the secret that the seed makes."""
    halves = [_u64(_SECRET, 8 * n) + (seed if n % 2 == 0 else -seed) & _MASK for n in range(24)]
    secret = b"".join(half.to_bytes(8, "little") for half in halves)
    acc = [_P32_3, _P1, _P2, _P3, _P4, _P32_2, _P5, _P32_1]
    stripes = (len(secret) - _STRIPE) // 8
    blocks, last = divmod(len(data) - 1, _STRIPE * stripes)
    for block in range(blocks):
        for stripe in range(stripes):
            _accumulate(acc, data, (block * stripes + stripe) * _STRIPE, secret, 8 * stripe)
        for lane in range(8):
            value = acc[lane] ^ acc[lane] >> 47 ^ _u64(secret, len(secret) - _STRIPE + 8 * lane)
            acc[lane] = value * _P32_1 & _MASK
    for stripe in range(last // _STRIPE):
        _accumulate(acc, data, (blocks * stripes + stripe) * _STRIPE, secret, 8 * stripe)
    _accumulate(acc, data, len(data) - _STRIPE, secret, len(secret) - _STRIPE - 7)
    return acc, secret


def _merge(acc, secret, at, result):
    for n in range(4):
        result += _fold(acc[2 * n] ^ _u64(secret, at + 16 * n), acc[2 * n + 1] ^ _u64(secret, at + 16 * n + 8))
    return _avalanche(result & _MASK)


def _short_combo(data):
    return data[0] << 16 | data[len(data) >> 1] << 24 | data[-1] | len(data) << 8


def xxh3_64(data, seed=0):
    """The hash of bytes, a number of 64 bits."""
    size = len(data)
    if size == 0:
        return _avalanche_xxh64(seed ^ _u64(_SECRET, 56) ^ _u64(_SECRET, 64))
    if size <= 3:
        flip = (_u32(_SECRET, 0) ^ _u32(_SECRET, 4)) + seed & _MASK
        return _avalanche_xxh64(_short_combo(data) ^ flip)
    if size <= 8:
        seed ^= _swap(seed & 0xFFFFFFFF, 4) << 32
        flip = (_u64(_SECRET, 8) ^ _u64(_SECRET, 16)) - seed & _MASK
        value = (_u32(data, size - 4) + (_u32(data, 0) << 32) & _MASK) ^ flip
        value ^= _rotl(value, 49, 64) ^ _rotl(value, 24, 64)
        value = value * 0x9FB21C651E98DF25 & _MASK
        value ^= (value >> 35) + size
        value = value * 0x9FB21C651E98DF25 & _MASK
        return value ^ value >> 28
    if size <= 16:
        low = _u64(data, 0) ^ ((_u64(_SECRET, 24) ^ _u64(_SECRET, 32)) + seed & _MASK)
        high = _u64(data, size - 8) ^ ((_u64(_SECRET, 40) ^ _u64(_SECRET, 48)) - seed & _MASK)
        return _avalanche(size + _swap(low, 8) + high + _fold(low, high) & _MASK)
    if size <= 128:
        acc = size * _P1
        for n in range((size - 1) // 32 + 1):
            acc += _mix16(data, 16 * n, 32 * n, seed) + _mix16(data, size - 16 * (n + 1), 32 * n + 16, seed)
        return _avalanche(acc & _MASK)
    if size <= 240:
        acc = _avalanche(size * _P1 + sum(_mix16(data, 16 * n, 16 * n, seed) for n in range(8)) & _MASK)
        acc += sum(_mix16(data, 16 * n, 16 * (n - 8) + 3, seed) for n in range(8, size // 16))
        return _avalanche(acc + _mix16(data, size - 16, 136 - 17, seed) & _MASK)
    acc, secret = _long(data, seed)
    return _merge(acc, secret, 11, size * _P1 & _MASK)


def _mid_128(acc, size, seed):
    low = _avalanche(acc[0] + acc[1] & _MASK)
    high = _avalanche(acc[0] * _P1 + acc[1] * _P4 + (size - seed) * _P2 & _MASK)
    return low | (-high & _MASK) << 64


def xxh3_128(data, seed=0):
    """The hash of bytes, a number of 128 bits."""
    size = len(data)
    if size == 0:
        halves = [_u64(_SECRET, at) ^ _u64(_SECRET, at + 8) for at in (64, 80)]
        low, high = (_avalanche_xxh64(seed ^ half) for half in halves)
        return low | high << 64
    if size <= 3:
        low = _short_combo(data)
        high = _rotl(_swap(low, 4), 13, 32)
        flip_low = (_u32(_SECRET, 0) ^ _u32(_SECRET, 4)) + seed & _MASK
        flip_high = (_u32(_SECRET, 8) ^ _u32(_SECRET, 12)) - seed & _MASK
        return _avalanche_xxh64(low ^ flip_low) | _avalanche_xxh64(high ^ flip_high) << 64
    if size <= 8:
        seed ^= _swap(seed & 0xFFFFFFFF, 4) << 32
        value = _u32(data, 0) + (_u32(data, size - 4) << 32)
        product = (value ^ ((_u64(_SECRET, 16) ^ _u64(_SECRET, 24)) + seed & _MASK)) * (_P1 + (size << 2) & _MASK)
        low, high = product & _MASK, product >> 64
        high = high + (low << 1) & _MASK
        low ^= high >> 3
        low = (low ^ low >> 35) * 0x9FB21C651E98DF25 & _MASK
        return low ^ low >> 28 | _avalanche(high) << 64
    if size <= 16:
        flip_low = (_u64(_SECRET, 32) ^ _u64(_SECRET, 40)) - seed & _MASK
        flip_high = (_u64(_SECRET, 48) ^ _u64(_SECRET, 56)) + seed & _MASK
        high_in = _u64(data, size - 8)
        product = (_u64(data, 0) ^ high_in ^ flip_low) * _P1
        low, high = (product & _MASK) + ((size - 1) << 54) & _MASK, product >> 64
        high_in ^= flip_high
        high = high + high_in + (high_in & 0xFFFFFFFF) * (_P32_2 - 1) & _MASK
        low ^= _swap(high, 8)
        product = low * _P2
        return _avalanche(product & _MASK) | _avalanche((product >> 64) + high * _P2 & _MASK) << 64
    if size <= 128:
        acc = (size * _P1 & _MASK, 0)
        for n in reversed(range((size - 1) // 32 + 1)):
            acc = _mix32(acc, data, 16 * n, size - 16 * (n + 1), 32 * n, seed)
        return _mid_128(acc, size, seed)
    if size <= 240:
        acc = (size * _P1 & _MASK, 0)
        for n in range(4):
            acc = _mix32(acc, data, 32 * n, 32 * n + 16, 32 * n, seed)
        acc = (_avalanche(acc[0]), _avalanche(acc[1]))
        for n in range(4, size // 32):
            acc = _mix32(acc, data, 32 * n, 32 * n + 16, 32 * (n - 4) + 3, seed)
        acc = _mix32(acc, data, size - 16, size - 32, 136 - 17 - 16, -seed & _MASK)
        return _mid_128(acc, size, seed)
    acc, secret = _long(data, seed)
    low = _merge(acc, secret, 11, size * _P1 & _MASK)
    high = _merge(acc, secret, len(secret) - 64 - 11, ~(size * _P2) & _MASK)
    return low | high << 64
