-- Changes a collection that carries a mark.
-- ARGV: hash, set or sorted; the mark; put, remove or turn; the mark in its place, of a turn; then names, each with its value but for a
-- set and for a remove.
-- nil: it does not carry the mark. Else: 1 for each entry that was new, or that was there, and 0 for each other.
local key, of, mark, act = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local looks = {hash = 'HEXISTS', set = 'SISMEMBER', sorted = 'ZSCORE'}
local drops = {hash = 'HDEL', set = 'SREM', sorted = 'ZREM'}
local has = redis.call(looks[of], key, mark)
if not has or has == 0 then return false end
local function put(name, value)
  if of == 'hash' then return redis.call('HSET', key, name, value) end
  if of == 'set' then return redis.call('SADD', key, name) end
  return redis.call('ZADD', key, value, name)
end
local told, at = {}, 4
if act == 'remove' then
  for i = at, #ARGV do told[#told + 1] = redis.call(drops[of], key, ARGV[i]) end
  return told
end
if act == 'turn' then
  put(ARGV[4], '0')
  redis.call(drops[of], key, mark)
  at = 5
end
local step = of == 'set' and 1 or 2
for i = at, #ARGV, step do told[#told + 1] = put(ARGV[i], ARGV[i + 1]) end
return told
