-- Writes over a part of an item's value, and gives it another version.
-- ARGV: from which byte of the value; the bytes; 8 bytes of a version without its highest bit.
-- 1: stored. 0: there is no item. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], '0', '8')
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
local version, from = ARGV[3], 9
if head:byte(2) >= 128 then
  version, from = string.char(version:byte() + 128) .. version:sub(2), 13
end
if #ARGV[2] > 0 then redis.call('SETRANGE', KEYS[1], string.format('%.0f', from + ARGV[1]), ARGV[2]) end
-- The same command on the same key, and shorter: it is not refused where the first was not.
redis.call('SETRANGE', KEYS[1], '1', version)
return 1
