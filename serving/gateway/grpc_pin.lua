-- Puts the model and version that the gateway chose at the end of the one message of a gRPC
-- request. Of a field that comes twice protobuf takes the last, so the model server runs these.
local NAME, VERSION = 1, 2

local function field(number, value)
  return string.char(number * 8 + 2, #value) .. value
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local tail = field(NAME, headers:get("x-galley-model"))
    .. field(VERSION, headers:get("x-galley-version"))
  local body = handle:body(true)
  local length = body:length()
  local size = length - 5 + #tail
  local head = string.char(
    0,
    math.floor(size / 16777216) % 256,
    math.floor(size / 65536) % 256,
    math.floor(size / 256) % 256,
    size % 256
  )
  local message = length > 5 and body:getBytes(5, length - 5) or ""
  body:setBytes(head .. message .. tail)
end
