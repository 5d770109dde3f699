-- Writes an item over the version that was read.
-- ARGV: the item; its life in ms, or 0; the first 9 bytes of what was read; its length; and anything at all where what is there instead is read, too.
-- 1: stored. 0: there is no item. -1: there is another, or {-1, the item, its remaining life in ms}. -2: the value there is not an item.
-- Of a short item one call tells both whether it is long enough and whether it is longer; a long one is not copied for that.
local call, key, length = redis.call, KEYS[1], ARGV[4]
local is_short = #length < 4
local old = call('GETRANGE', key, '0', is_short and length or '8')
local is_same = old:sub(1, 9) == ARGV[3]
if is_same then
  is_same = (is_short and #old or call('STRLEN', key)) == length + 0
elseif #old < 9 or old:byte() ~= 193 then
  if old == '' and call('EXISTS', key) == 0 then return 0 end
  return -2
end
if not is_same then
  if not ARGV[5] then return -1 end
  return {-1, call('GET', key), call('PTTL', key)}
end
if ARGV[2] == '0' then
  call('SET', key, ARGV[1])
else
  call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
