-- Writes an item over the version that was read.
-- ARGV: the item; its life in ms, or 0; the first 9 bytes of what was read; its length.
-- 1: stored. 0: there is no item. -1: there is another. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], 0, 8)
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
if head ~= ARGV[3] or redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[4]) then return -1 end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
