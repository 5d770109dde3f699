-- Gives an item another life.
-- ARGV: the life in ms, or 0 for ever.
-- 1: touched. 0: there is no item. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], '0', '8')
if #head ~= 9 or head:byte() ~= 193 then
  if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return -2
end
if ARGV[1] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
