-- Removes an item, never what another program wrote.
-- ARGV: none, or the first 9 bytes of what was read and its length.
-- 1: deleted. 0: there is no item. -1: there is another than was read. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], '0', '8')
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
if ARGV[1] and (head ~= ARGV[1] or redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[2])) then return -1 end
redis.call('DEL', KEYS[1])
return 1
