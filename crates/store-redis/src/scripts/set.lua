-- Writes an item over an item, never over what another program wrote.
-- ARGV: the item; its life in ms, or 0; nothing more to set, "" to replace.
-- 1: stored. 0: there is nothing to replace. -2: the value there is not an item.
local call, key = redis.call, KEYS[1]
local head = call('GETRANGE', key, '0', '8')
if head:byte() ~= 193 or #head ~= 9 then
  if head ~= '' or call('EXISTS', key) == 1 then return -2 end
  if ARGV[3] then return 0 end
end
if ARGV[2] == '0' then
  call('SET', key, ARGV[1])
else
  call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
