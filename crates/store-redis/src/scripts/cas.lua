-- Writes an item over the version that was read.
-- ARGV: the item; its life in ms, or 0; the first 9 bytes of what was read; its length; and anything at all where what is there instead is read, too.
-- 1: stored. 0: there is no item. -1: there is another, or {-1, the item, its remaining life in ms}. -2: the value there is not an item.
-- Of a short item one call tells both whether it is long enough and whether it is longer; a long one is not copied for that.
local call, key, length = redis.call, KEYS[1], tonumber(ARGV[4])
local last = length
if length > 1024 then last = 8 end
local old = call('GETRANGE', key, 0, last)
local head, is_other = old:sub(1, 9), false
if head ~= ARGV[3] then
  if #head ~= 9 or head:byte() ~= 193 then
    if old == '' and call('EXISTS', key) == 0 then return 0 end
    return -2
  end
  is_other = true
elseif last == 8 then
  is_other = call('STRLEN', key) ~= length
else
  is_other = #old ~= length
end
if is_other then
  if not ARGV[5] then return -1 end
  return {-1, call('GET', key), call('PTTL', key)}
end
if ARGV[2] == '0' then
  call('SET', key, ARGV[1])
else
  call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
