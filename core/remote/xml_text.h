// Finds texts in the XML with which stores like S3 answer. Namespaces and attributes are ignored. No element
// is in another element of the same name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

/// Returns the insides of all elements with the name.
std::vector<std::string_view> xml_elements(std::string_view xml, std::string_view name);

/// Returns the text of the first element with the name, without escapes. Empty: there is none.
std::string xml_value(std::string_view xml, std::string_view name);

}  // namespace stfs
