// ClearJson: takes a nlohmann::json value apart at the end of a scope. That library's destructor
// allocates for a value that has children, so it would end the program when memory runs out.
#pragma once

namespace halfstep {

template <class Json>
class ClearJson {
 public:
  explicit ClearJson(Json& value) : value_(value) {}
  ~ClearJson() { clear(value_); }
  ClearJson(const ClearJson&) = delete;
  ClearJson& operator=(const ClearJson&) = delete;

 private:
  static void clear(Json& value) {  // from the leaves up: what has no children is just freed
    if (!value.is_structured()) return;
    for (Json& child : value) clear(child);
    value.clear();
  }

  Json& value_;
};

}  // namespace halfstep
