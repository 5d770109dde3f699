-- Joins bytes before an item's value, and gives it another version.
-- ARGV: the bytes; the longest that the item may become, with its header of 9 bytes; 8 bytes of a version without its highest bit.
-- 1: stored. 0: there is no item, or no room in it. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], '0', '8')
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
local max = tonumber(ARGV[2])
if head:byte(2) >= 128 then max = max + 4 end
if redis.call('STRLEN', KEYS[1]) + #ARGV[1] > max then return 0 end
local old = redis.call('GET', KEYS[1])
local version, from = ARGV[3], 10
if old:byte(2) >= 128 then
  if #old < 13 then return -2 end
  version, from = string.char(version:byte() + 128) .. version:sub(2) .. old:sub(10, 13), 14
end
redis.call('SET', KEYS[1], '\193' .. version .. ARGV[1] .. old:sub(from), 'KEEPTTL')
return 1
