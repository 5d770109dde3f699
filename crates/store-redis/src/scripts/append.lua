-- Joins bytes behind an item. Its version stays: version and length together tell what it holds.
-- ARGV: the bytes; the longest that the item may become, with its header of 9 bytes.
-- 1: stored. 0: there is no item, or no room in it. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], 0, 8)
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
local max = tonumber(ARGV[2])
if head:byte(2) >= 128 then max = max + 4 end
if redis.call('STRLEN', KEYS[1]) + #ARGV[1] > max then return 0 end
redis.call('APPEND', KEYS[1], ARGV[1])
return 1
