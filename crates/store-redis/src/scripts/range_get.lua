-- Reads a part of an item's value.
-- ARGV: from which byte of the value; to which, included.
-- nil: there is nothing. -2: the value there is not an item. Else: the bytes.
local head = redis.call('GETRANGE', KEYS[1], '0', '8')
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return false end
  return -2
end
local from = 9
if head:byte(2) >= 128 then from = 13 end
return redis.call('GETRANGE', KEYS[1], string.format('%.0f', from + ARGV[1]), string.format('%.0f', from + ARGV[2]))
