-- Adds to, or subtracts from, a value of decimal digits: unsigned, 64 bits, wrapping at 2^64 and stopping at 0.
-- Lua counts in doubles, so a number is two limbs: what stands before its last ten digits, and those.
-- ARGV: "+" or "-"; the delta; 8 bytes of a version without its highest bit; the number to begin with where there is none, or "";
-- its life in ms, or 0.
-- Digits: the new number. nil: there is no item. -2: the value there is not an item. -3: it is not a number.
local old = redis.call('GETRANGE', KEYS[1], 0, 63)
if #old < 9 or old:byte() ~= 193 then
  if old ~= '' or redis.call('EXISTS', KEYS[1]) == 1 then return -2 end
  if ARGV[4] == '' then return false end
  local item = '\193' .. ARGV[3] .. ARGV[4]
  if ARGV[5] == '0' then
    redis.call('SET', KEYS[1], item)
  else
    redis.call('SET', KEYS[1], item, 'PX', ARGV[5])
  end
  return ARGV[4]
end
local head, from = '\193' .. ARGV[3], 10
if old:byte(2) >= 128 then
  if #old < 13 then return -2 end
  head, from = '\193' .. string.char(ARGV[3]:byte() + 128) .. ARGV[3]:sub(2) .. old:sub(10, 13), 14
end
local digits = old:sub(from)
if #digits > 20 or not digits:find('^%d+$') then return -3 end
local high, low = tonumber(digits:sub(1, -11)) or 0, tonumber(digits:sub(-10))
if high > 1844674407 or (high == 1844674407 and low > 3709551615) then return -3 end
local by_high, by_low = tonumber(ARGV[2]:sub(1, -11)) or 0, tonumber(ARGV[2]:sub(-10))
if ARGV[1] == '+' then
  high, low = high + by_high, low + by_low
  if low >= 1e10 then high, low = high + 1, low - 1e10 end
  if high > 1844674407 or (high == 1844674407 and low > 3709551615) then
    high, low = high - 1844674407, low - 3709551616
  end
else
  high, low = high - by_high, low - by_low
end
if low < 0 then high, low = high - 1, low + 1e10 end
local number = '0'
if high > 0 then
  number = string.format('%.0f%010.0f', high, low)
elseif high == 0 then
  number = string.format('%.0f', low)
end
redis.call('SET', KEYS[1], head .. number, 'KEEPTTL')
return number
